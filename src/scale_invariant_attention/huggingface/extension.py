"""Extends the context of a trained model: measures its scores, chooses rotary and tau, converts it.

    L = sqrt(1 + 2 u / sigma^2) S - 2 u,    u = log1p(t/tau)

with the measured sigma of every head. The sample text is cut in three: scores are measured, and a model
is fine-tuned, on the first part, rotary and tau are chosen on the second, and losses are reported on the
third. The folder holds:

    extension.json    everything measured so far, and the choice
    model/            the converted model
    fine-tuning/      the fine-tuning, if there is one, and its model
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..arguments import integer, positive_number
from ..data import SameTokens, TokenSource, TokenStream, spread_windows
from ..data.tokens import TokenArray
from ..evaluation.losses import LengthLoss, PositionLoss, loss_by_length_and_position
from ..files import check_writable, finish_growing, growing_path, locked, replace_file
from ..provenance import provenance
from ._conversion import convert
from ._scores import measure_scores
from .continued_pretraining import PretrainingRecipe, check_same, continue_pretraining, fingerprint
from .rotary import ROTARIES

RECORD, IDENTITY, MODEL, FINE_TUNING = "extension.json", "sample.json", "model", "fine-tuning"
SCHEME = "scale-invariant-rope"
# Frequencies that are the same at every length, so that caches stay valid as texts grow.
CANDIDATES = ("slow", "yarn", "ntk", "own")
# Tokens scored at each length on each held-out part, unless one text of the longest length is longer.
TOKENS = 32_768
# Sequences of the training length that scores are measured on.
MEASURED_ROWS = 16
# Logits computed at once, over batch, tokens and vocabulary.
LOGITS_AT_ONCE = 2**24
CARD = """\
# Extended by scale-invariant attention

```python
import scale_invariant_attention.huggingface  # pip install "scale-invariant-attention[huggingface]"
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(".")
```

{table}
"""


class TokenLosses:
    """A model of transformers as evaluation takes it: the loss of every token.

    Logits are computed for some tokens at a time, so memory does not grow with length times vocabulary.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=256)
    >>> tokens = torch.randint(256, (2, 8))
    >>> TokenLosses(LlamaForCausalLM(config))(tokens, tokens).shape
    torch.Size([2, 8])
    """

    def __init__(self, model: Any, logits_at_once: int = LOGITS_AT_ONCE) -> None:
        self._model, self._at_once = model.eval(), logits_at_once

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str = "none") -> Tensor:
        """Losses ``[B, L]``, or their mean or sum."""
        base = self._model.base_model
        if base is self._model:
            losses = self._losses(tokens, targets)
        else:
            output = base(tokens, use_cache=False)
            hidden = output.last_hidden_state
            size = max(1, self._at_once // (len(tokens) * self._model.config.vocab_size))
            pieces = []
            for start in range(0, tokens.shape[1], size):
                part = slice(start, start + size)
                output.last_hidden_state = hidden[:, part]
                # The model's own head, on hidden states that are known already.
                with _returning(base, output):
                    pieces.append(self._losses(tokens[:, part], targets[:, part]))
            losses = torch.cat(pieces, 1)
        return {"none": losses, "mean": losses.mean(), "sum": losses.sum()}[reduction]

    def _losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self._model(tokens, use_cache=False).logits.float()
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


@contextmanager
def _returning(module: nn.Module, output: Any) -> Iterator[None]:
    """Have a module return `output` instead of computing it."""
    module.forward = lambda *arguments, **named: output
    try:
        yield
    finally:
        del module.forward


@dataclass(frozen=True)
class Losses:
    """Loss by context length on the same tokens, and by position in texts of the longest length."""

    by_length: tuple[LengthLoss, ...]
    by_position: tuple[PositionLoss, ...]

    @property
    def mean(self) -> float:
        """Mean over the lengths, each of which counts the same."""
        return sum(row.loss for row in self.by_length) / len(self.by_length)

    @classmethod
    def from_json(cls, value: Any) -> "Losses":
        """Losses as a record holds them."""
        return cls(
            tuple(LengthLoss(**row) for row in value["by_length"]),
            tuple(PositionLoss(**row) for row in value["by_position"]),
        )


@dataclass(frozen=True)
class Candidate:
    """A rotary and a tau, and the loss of the model that has them on the part to choose on."""

    rotary: str
    tau: float
    losses: Losses


@dataclass(frozen=True)
class Extension:
    """Everything that :func:`extend` measured and chose; `fine_tuned` is None without fine-tuning."""

    train_length: int
    factor: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    before: Losses
    after: Losses
    fine_tuned: Losses | None
    model_folder: Path


class _Part:
    """Some of the tokens of a source, as a source of their own."""

    def __init__(self, source: TokenSource, start: int, stop: int) -> None:
        self.vocab_size, self._source, self._start, self._stop = (
            source.vocab_size,
            source,
            start,
            stop,
        )

    @property
    def document_starts(self) -> NDArray[np.int64]:
        starts = self._source.document_starts - self._start
        inside: NDArray[np.int64] = starts[(starts > 0) & (starts < len(self))]
        return np.concatenate([np.zeros(1, np.int64), inside])

    def __len__(self) -> int:
        return self._stop - self._start

    def read(self, start: int, stop: int) -> TokenArray:
        return self._source.read(self._start + start, self._start + stop)


def extend(
    model: Any,
    tokenizer: Any,
    text: Any,
    folder: str | os.PathLike[str],
    *,
    factor: int = 16,
    train_length: int | None = None,
    rotaries: Sequence[str] = CANDIDATES,
    taus: Sequence[float] = (3.0, 10.0, 30.0, 1.0),
    with_mean: bool = False,
    tokens: int = TOKENS,
    fine_tune: int | PretrainingRecipe | None = None,
    watch: Callable[[str, int, int], object] = lambda name, done, total: None,
    **arguments: Any,
) -> tuple[Any, Extension]:
    """Extend the context of a model, save it in ``folder/model``, and return it with a report.

    The model is changed in place. Every rotary is tried with the first tau, then the best of them with
    the others; the lowest mean loss over the lengths 1, 4, 16, ... up to `factor` times the training
    length wins, so that short texts count as much as long ones. If interrupted, the same call resumes:
    what was measured is in ``folder/extension.json`` and is not measured again.

    Args:
        model: a causal language model of transformers that :func:`convert` accepts.
        tokenizer: its tokenizer, saved with the model; None if `text` consists of tokens.
        text: a sample of text, token ids, an iterable of token ids, or a corpus of
            ``scale_invariant_attention.data`` in the model's tokens.
        folder: folder for the record and the models.
        factor: the longest context as a multiple of the training length.
        train_length: by default ``config.max_position_embeddings``.
        rotaries: names of rotaries to try, see docs/extending.md.
        taus: values of tau to try.
        with_mean: also give the transform the mean of each head's scores.
        tokens: tokens to score at each length, of each of the two held-out parts.
        fine_tune: tokens, or a recipe, to continue pretraining with; None for no fine-tuning.
        watch: called with the name of what is being measured, and the tokens scored so far and in all.
        arguments: further ``TrainingArguments`` of the fine-tuning, such as ``bf16=True``.
    """
    folder = Path(folder)
    factor = integer("factor", factor, at_least=2)
    _check_candidates(rotaries, taus)
    # Refuses what cannot be converted, before any work; then the model is as it was trained.
    convert(convert(model, SCHEME, sigma=1.0), "rope")
    length = integer(
        "train_length", train_length or model.config.max_position_embeddings, at_least=2
    )
    source = _token_source(model, tokenizer, text)
    lengths = _lengths(length, factor)
    sample, choice, report = _parts(source, lengths, tokens)
    recipe = _recipe(fine_tune, length)
    check_writable(folder)
    described = {
        "model": fingerprint(model),
        "text": {"tokens": len(source), "sample": _hash(sample), "held out": _hash(report.source)},
        "lengths": list(lengths),
        "tokens": [choice.count, report.count],
        "with_mean": bool(with_mean),
    }
    with locked(folder, wait=False):
        check_same(folder / IDENTITY, described, "extension")
        total = (2 + len(rotaries) + len(taus) - 1) * len(lengths) * report.count
        total += 0 if recipe is None else len(lengths) * report.count
        measure = _Measuring(model, folder / RECORD, total, watch)

        def converted(rotary: str, tau: float) -> None:
            options: dict[str, Any] = {"rotary": rotary, "factor": factor, "train_length": length}
            convert(model, "rope", **options)
            rows = spread_windows(sample, length, MEASURED_ROWS).to(model.device)
            scores = measure_scores(model, rows.chunk(4))
            calibration = scores if with_mean else scores.without_mean
            with warnings.catch_warnings():
                # A rotary that needs fine-tuning may be tried; the losses show what it costs.
                warnings.filterwarnings("ignore", ".*must be fine-tuned before use")
                convert(model, SCHEME, calibration=calibration, tau=tau, **options)

        def candidate(rotary: str, tau: float) -> Candidate:
            name = f"{rotary}, tau {tau:g}"
            return Candidate(rotary, tau, measure(name, choice, lambda: converted(rotary, tau)))

        before = measure("before", report, lambda: convert(model, "rope"))
        candidates = [candidate(rotary, taus[0]) for rotary in rotaries]
        best = min(candidates, key=lambda it: it.losses.mean)
        candidates += [candidate(best.rotary, tau) for tau in taus[1:]]
        best = min(candidates, key=lambda it: it.losses.mean)
        after = measure("after", report, lambda: converted(best.rotary, best.tau))
        converted(best.rotary, best.tau)
        saved = folder / MODEL
        _save(model, tokenizer, saved, before, after)
        fine_tuned = None
        if recipe is not None:
            arguments.setdefault("use_cpu", model.device.type == "cpu")
            model = continue_pretraining(
                model, sample, folder / FINE_TUNING, recipe, **arguments
            ).eval()
            measure.model, saved = model, folder / FINE_TUNING / MODEL
            fine_tuned = measure(f"fine-tuned, {recipe.tokens:,} tokens", report, lambda: None)
            if tokenizer is not None:
                tokenizer.save_pretrained(saved)
        measure.record(chosen={"rotary": best.rotary, "tau": best.tau})
    return model, Extension(
        length, factor, tuple(candidates), best, before, after, fine_tuned, saved
    )


class _Measuring:
    """Measures a model on the same tokens again and again, and keeps what it measured in a file."""

    def __init__(
        self, model: Any, path: Path, total: int, watch: Callable[[str, int, int], object]
    ) -> None:
        self.model, self._path, self._total, self._watch = model, path, total, watch
        self._scored = 0
        self._held: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}

    def __call__(self, name: str, same: SameTokens, prepare: Callable[[], object]) -> Losses:
        """Losses of the model once `prepare` has changed it, or those that the file holds."""
        known, start = self._held.setdefault("losses", {}), self._scored
        self._scored += len(same.lengths) * same.count
        if name not in known:
            prepare()
            by_length, by_position = loss_by_length_and_position(
                TokenLosses(self.model),
                same,
                device=self.model.device,
                progress=lambda scored: self._watch(name, start + scored, self._total),
            )
            known[name] = asdict(Losses(tuple(by_length), tuple(by_position)))
            self.record()
        self._watch(name, self._scored, self._total)
        return Losses.from_json(known[name])

    def record(self, **facts: Any) -> None:
        """Write the file, with more facts."""
        self._held |= facts
        self._held["provenance"] = provenance()
        replace_file(self._path, json.dumps(self._held, indent=1).encode())


def _check_candidates(rotaries: Sequence[str], taus: Sequence[float]) -> None:
    if isinstance(rotaries, str) or not rotaries or not set(rotaries) <= ROTARIES.keys():
        known = ", ".join(ROTARIES)
        raise ValueError(f"rotaries must be one or more of {known}, got {rotaries!r}")
    if not isinstance(taus, Sequence) or not taus:
        raise ValueError(f"taus must be one or more numbers, got {taus!r}")
    for tau in taus:
        positive_number("taus", tau)


def _lengths(length: int, factor: int) -> tuple[int, ...]:
    """The training length, its multiples by powers of four that divide the factor, and the longest.

    >>> _lengths(256, 16), _lengths(256, 6)
    ((256, 1024, 4096), (256, 1536))
    """
    powers = [4**power for power in range(factor.bit_length()) if factor % 4**power == 0]
    return tuple(length * multiple for multiple in sorted({*powers, factor}))


def _token_source(model: Any, tokenizer: Any, text: Any) -> TokenSource:
    """The sample as a source of tokens."""
    vocab_size = int(model.config.vocab_size)
    if hasattr(text, "read") and hasattr(text, "vocab_size"):
        source: TokenSource = text
        if source.vocab_size > vocab_size:
            raise ValueError(
                f"text must have tokens below the model's vocab_size, {vocab_size}, got a corpus with "
                f"{source.vocab_size}: encode it with the model's own tokenizer"
            )
        return source
    if isinstance(text, str):
        if tokenizer is None:
            raise TypeError("tokenizer must be given to encode a text, got None: or pass token ids")
        parts = [np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"])]
    elif isinstance(text, Tensor):
        parts = [text.flatten().cpu().numpy()]
    elif isinstance(text, Iterable):
        parts = [torch.as_tensor(batch).flatten().cpu().numpy() for batch in text]
    else:
        raise TypeError(f"text must be a text, token ids or a corpus, got a {type(text).__name__}")
    start = getattr(tokenizer, "bos_token_id", None)
    ids = [part.astype(np.uint32) for part in parts]
    highest = max((int(part.max()) for part in ids if len(part)), default=0)
    if highest >= vocab_size:
        raise ValueError(
            f"text must have tokens below the model's vocab_size, {vocab_size}, got {highest}: encode "
            "it with the model's own tokenizer"
        )
    return TokenStream(ids, vocab_size=vocab_size, document_start=-1 if start is None else start)


def _parts(
    source: TokenSource, lengths: Sequence[int], tokens: int
) -> tuple[_Part, SameTokens, SameTokens]:
    """The tokens to measure scores and fine-tune on, to choose on, and to report."""
    longest, least = max(lengths), MEASURED_ROWS * min(lengths)
    needed = 2 * (longest + 1) + least
    if len(source) < needed:
        raise ValueError(
            f"text must have at least {needed:,} tokens for contexts of {longest:,}, got "
            f"{len(source):,}: give more text, or a smaller factor"
        )
    wanted = max(longest, integer("tokens", tokens, at_least=1) // longest * longest)
    size = min(wanted, (len(source) - least) // 2 // longest * longest) + 1
    first, second = len(source) - 2 * size, len(source) - size
    held_out = (_Part(source, first, second), _Part(source, second, len(source)))
    choice, report = (SameTokens(part, lengths, at_most=size - 1) for part in held_out)
    return _Part(source, 0, first), choice, report


def _hash(source: TokenSource) -> str:
    part = source.read(0, min(len(source), 2**20))
    return TokenStream([part], vocab_size=source.vocab_size, document_start=-1).fingerprint()


def _recipe(fine_tune: int | PretrainingRecipe | None, length: int) -> PretrainingRecipe | None:
    if fine_tune is None or isinstance(fine_tune, PretrainingRecipe):
        return fine_tune
    return PretrainingRecipe(integer("fine_tune", fine_tune, at_least=1), length)


def _save(model: Any, tokenizer: Any, folder: Path, before: Losses, after: Losses) -> None:
    """Write the model, whole or not at all; one that is there already is the same."""
    if (folder / "config.json").exists():
        return
    partial = growing_path(folder)
    model.save_pretrained(partial)
    if tokenizer is not None:
        tokenizer.save_pretrained(partial)
    rows = ["| tokens | loss before | after |", "|---|---|---|"]
    rows += [
        f"| {one.length:,} | {one.loss:.3f} | {other.loss:.3f} |"
        for one, other in zip(before.by_length, after.by_length, strict=True)
    ]
    (partial / "README.md").write_text(CARD.format(table="\n".join(rows)))
    finish_growing(folder)
