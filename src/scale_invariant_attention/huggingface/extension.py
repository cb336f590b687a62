"""Extends the context of a trained model: measures its scores, chooses rotary and tau, converts it.

    L = sqrt(1 + 2 u / sigma^2) S - 2 u,    u = log1p(t/tau)

with the measured sigma of every head. The sample text is cut in three: scores are measured, and a model
is fine-tuned, on the first part, rotary and tau are chosen on the second, and losses are reported on the
third. The folder holds:

    extension.json    everything measured so far (the scores of each rotary, all losses), and the choice
    model/            the converted model
    fine-tuning/      the fine-tuning, if there is one, and its model
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import integer, positive_number, shown
from ..data import SameTokens, TokenSource, TokenStream, spread_windows
from ..data.tokens import TokenSlice, token_source
from ..evaluation.losses import Losses, measure_losses
from ..files import check_writable, finish_growing, growing_path, locked, replace_file
from ..files.json_files import read_json_object
from ..provenance import provenance
from ._conversion import ConversionWarning, convert
from ._scores import Calibration, measure_scores
from .continued_pretraining import (
    PretrainingRecipe,
    check_same,
    checked_recipe,
    continue_pretraining,
    fingerprint,
)
from .rotary import check_names

RECORD, IDENTITY, MODEL, FINE_TUNING = "extension.json", "sample.json", "model", "fine-tuning"
SCHEME = "scale-invariant-rope"
# Frequencies that are the same at every length, so that caches stay valid as texts grow.
CANDIDATES = ("slow", "yarn", "ntk", "own")
# Rotaries are compared with the first.
TAUS = (10.0, 30.0, 3.0, 1.0)
# Tokens scored at each length on each held-out part, unless one text of the longest length is longer.
TOKENS = 32_768
# Sequences of the training length that scores are measured on.
MEASURED_ROWS = 16
# Nats per token by which a loss may exceed another that it counts as close to.
NEAR = 0.05
# Logits computed at once, over batch, tokens and vocabulary.
LOGITS_AT_ONCE = 2**24
CARD = """\
# Extended by scale-invariant attention

```python
import scale_invariant_attention.huggingface  # registers the attention with transformers
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(".")
```

It needs the package scale-invariant-attention with its extra huggingface.

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

    @property
    def cost(self) -> float:
        """Loss that the extension adds at the training length, after the fine-tuning if there is one."""
        return (self.fine_tuned or self.after).by_length[0].loss - self.before.by_length[0].loss

    @property
    def reach(self) -> int:
        """The length up to which the loss stays within `NEAR` of its value at the training length."""
        first, *longer = (self.fine_tuned or self.after).by_length
        near = takewhile(lambda row: row.loss <= first.loss + NEAR, longer)
        return max((row.length for row in near), default=first.length)


def extend(
    model: Any,
    tokenizer: Any,
    text: Any,
    folder: str | os.PathLike[str],
    *,
    factor: int = 16,
    train_length: int | None = None,
    rotaries: Sequence[str] = CANDIDATES,
    taus: Sequence[float] = TAUS,
    with_mean: bool = False,
    tokens: int = TOKENS,
    fine_tune: int | PretrainingRecipe | None = None,
    watch: Callable[[str, int, int], object] = lambda name, done, total: None,
    **arguments: Any,
) -> tuple[Any, Extension]:
    """Extend the context of a model, save it in ``folder/model``, and return it with a report.

    The model is changed in place. Every rotary is tried with the first tau, then the best rotary with
    the other taus; the lowest mean loss over the lengths 1, 4, 16, ... up to `factor` times the training
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
        watch: called with the name of what is being done, and the tokens read so far and in all.
        arguments: further ``TrainingArguments`` of the fine-tuning, such as ``bf16=True``.
    """
    folder = Path(folder)
    factor = integer("factor", factor, at_least=2)
    check_names(rotaries)
    _check_taus(taus)
    length = training_length(model, train_length)
    recipe = None if fine_tune is None else checked_recipe(fine_tune, length, model)
    source = token_source(text, tokenizer, int(model.config.vocab_size))
    lengths = _lengths(length, factor)
    sample, choice, report = _parts(source, lengths, tokens)
    check_writable(folder)
    described = {
        "model": fingerprint(model),
        "text": {
            "tokens": len(source),
            "sample": _hash(sample),
            "held out": _hash(report.source),
        },
        "lengths": list(lengths),
        "tokens": [choice.count, report.count],
        "rotaries": list(rotaries),
        "taus": list(taus),
        "with_mean": bool(with_mean),
    }
    with locked(folder, wait=False):
        check_same(folder / IDENTITY, described, "extension")
        models = 1 + len(rotaries) + len(taus) + (recipe is not None)
        trained = 0 if recipe is None else recipe.steps * recipe.batch_size * recipe.length
        total = models * len(lengths) * report.count + trained
        measure = _Measuring(model, folder / RECORD, total, watch)

        def converted(rotary: str, tau: float) -> None:
            options: dict[str, Any] = {"rotary": rotary, "factor": factor, "train_length": length}

            def measured() -> Calibration:
                convert(model, "rope", **options)
                rows = spread_windows(sample, length, MEASURED_ROWS).to(model.device)
                return measure_scores(model, rows.chunk(4))

            scores = measure.scores(rotary, measured)
            calibration = scores if with_mean else scores.without_mean
            convert(model, SCHEME, calibration=calibration, tau=tau, **options)

        def tried(rotary: str, tau: float) -> None:
            # A rotary that needs fine-tuning may be tried; the losses show what it costs.
            with warnings.catch_warnings(action="ignore", category=ConversionWarning):
                converted(rotary, tau)

        def candidate(rotary: str, tau: float) -> Candidate:
            name = f"{rotary}, tau {tau:g}"
            return Candidate(rotary, tau, measure(name, choice, lambda: tried(rotary, tau)))

        before = measure("before", report, lambda: convert(model, "rope"))
        candidates = [candidate(rotary, taus[0]) for rotary in rotaries]
        best = min(candidates, key=lambda it: it.losses.mean)
        candidates += [candidate(best.rotary, tau) for tau in taus[1:]]
        best = min(candidates, key=lambda it: it.losses.mean)
        converted(best.rotary, best.tau)
        after = measure("after", report)
        saved = folder / MODEL
        _save(model, tokenizer, saved, before=before, after=after)
        fine_tuned = None
        if recipe is not None:
            arguments.setdefault("use_cpu", model.device.type == "cpu")
            with measure.progress("fine-tuning", trained) as watch_tokens:
                model = continue_pretraining(
                    model,
                    sample,
                    folder / FINE_TUNING,
                    recipe,
                    watch=lambda step, loss: watch_tokens(trained * step // recipe.steps),
                    **arguments,
                ).eval()
            measure.model, saved = model, folder / FINE_TUNING / MODEL
            fine_tuned = measure(f"fine-tuned, {recipe.tokens:,} tokens", report)
            _complete(saved, tokenizer, before=before, after=after, fine_tuned=fine_tuned)
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
        self._done = 0
        self._held: dict[str, Any] = read_json_object(path) if path.exists() else {}
        for name in ("losses", "scores"):
            with self._naming(name):
                if not isinstance(self._held.get(name, {}), dict):
                    raise TypeError(f"it must be an object, got {shown(self._held[name])}")

    def __call__(
        self, name: str, same: SameTokens, prepare: Callable[[], object] = lambda: None
    ) -> Losses:
        """Losses of the model once `prepare` has changed it, or those that the file holds."""
        known = self._held.setdefault("losses", {})
        with self.progress(name, len(same.lengths) * same.count) as progress:
            # Records of earlier versions have no losses by stretch: they are measured again.
            if "by_stretch" not in (known.get(name) or {}):
                prepare()
                losses = measure_losses(
                    TokenLosses(self.model), same, device=self.model.device, progress=progress
                )
                known[name] = asdict(losses)
                self.record()
        with self._naming(f"losses.{name}"):
            return Losses.from_json(known[name])

    def scores(self, rotary: str, measured: Callable[[], Calibration]) -> Calibration:
        """Scores of the model with a rotary: those that the file holds, or those just `measured`."""
        known = self._held.setdefault("scores", {})
        if rotary not in known:
            known[rotary] = measured().as_lists()
            self.record()
        with self._naming(f"scores.{rotary}"):
            return Calibration.from_lists(known[rotary])

    @contextmanager
    def _naming(self, field: str) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            problem = f"{self._path} cannot be read at {field}: {error}"
            raise ValueError(f"{problem}; remove it to measure again") from error

    @contextmanager
    def progress(self, name: str, tokens: int) -> Iterator[Callable[[int], object]]:
        """Yields a function that reports how many of `tokens` are done; all of them are at the end."""
        start = self._done
        self._done += tokens
        yield lambda done: self._watch(name, start + done, self._total)
        self._watch(name, self._done, self._total)

    def record(self, **facts: Any) -> None:
        """Write the file, with more facts."""
        self._held |= facts
        self._held["provenance"] = provenance()
        replace_file(self._path, json.dumps(self._held, indent=1).encode())


def _check_taus(taus: Sequence[float]) -> None:
    if not isinstance(taus, Sequence) or not taus:
        raise ValueError(f"taus must be one or more numbers, got {taus!r}")
    for tau in taus:
        positive_number("taus", tau)


def training_length(model: Any, given: int | None = None) -> int:
    """Training length of a model, if `given` is None that of its config; refuses what `convert` does."""
    with warnings.catch_warnings(action="ignore", category=ConversionWarning):
        # Converted and restored, before any work.
        convert(convert(model, SCHEME, sigma=1.0), "rope")
    return integer("train_length", given or model.config.max_position_embeddings, at_least=2)


def _lengths(length: int, factor: int) -> tuple[int, ...]:
    """The training length, its multiples by powers of four that divide the factor, and the longest.

    >>> _lengths(256, 16), _lengths(256, 6)
    ((256, 1024, 4096), (256, 1536))
    """
    powers = [4**power for power in range(factor.bit_length()) if factor % 4**power == 0]
    return tuple(length * multiple for multiple in sorted({*powers, factor}))


def _parts(
    source: TokenSource, lengths: Sequence[int], tokens: int
) -> tuple[TokenSlice, SameTokens, SameTokens]:
    """The tokens to measure scores and fine-tune on, to choose on, and to report."""
    longest, least = max(lengths), MEASURED_ROWS * min(lengths)
    needed = 2 * (longest + 1) + least
    if len(source) < needed:
        raise ValueError(
            f"text must have at least {needed:,} tokens for contexts of {longest:,}, got "
            f"{len(source):,}: give more text"
        )
    wanted = max(longest, integer("tokens", tokens, at_least=1) // longest * longest)
    size = min(wanted, (len(source) - least) // 2 // longest * longest) + 1
    first, second = len(source) - 2 * size, len(source) - size
    held_out = (TokenSlice(source, first, second), TokenSlice(source, second, len(source)))
    choice, report = (SameTokens(part, lengths, at_most=size - 1) for part in held_out)
    return TokenSlice(source, 0, first), choice, report


def _hash(source: TokenSource) -> str:
    """Fingerprint of the first million tokens of a source."""
    part = source.read(0, min(len(source), 2**20))
    return TokenStream([part], vocab_size=source.vocab_size, document_start=-1).fingerprint()


def _save(model: Any, tokenizer: Any, folder: Path, **measured: Losses) -> None:
    """Write the model, whole or not at all; one that is there already is the same."""
    if (folder / "config.json").exists():
        return
    partial = growing_path(folder)
    model.save_pretrained(partial)
    _complete(partial, tokenizer, **measured)
    finish_growing(folder)


def _complete(folder: Path, tokenizer: Any, **measured: Losses) -> None:
    """Add the tokenizer, and a card with the losses, to the folder of a model."""
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    names = (f"loss {name.replace('_', '-')}" for name in measured)
    rows = [["tokens", *names], ["---"] * (1 + len(measured))]
    for same in zip(*(losses.by_length for losses in measured.values()), strict=True):
        rows.append([f"{same[0].length:,}", *(f"{row.loss:.3f}" for row in same)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    replace_file(folder / "README.md", CARD.format(table=table).encode())
