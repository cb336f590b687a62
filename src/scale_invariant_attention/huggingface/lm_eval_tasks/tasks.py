"""Loss by context length and needles in a haystack as lm-eval tasks; lengths are in bytes.

The windows are those of `sia evaluate` on the standard library: contiguous, with the given number of
bytes, of which all but the first are predicted, and the byte after them. lm-eval passes text, which
cannot be cut inside a character, so a window that would start inside one starts with that character.
The needles have the texts and scores of `sia needle`; a text cut inside a character shows U+FFFD there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from ...data import SameTokens, get_encoding, standard_library
from ...data.needles import Needle, NeedleFormat, NeedleTask
from ...evaluation.retrieval import needles_found

# As many as in `sia evaluate` and `sia needle`.
TOKENS, EXAMPLES = 65_536, 50


class WholeContext(str):
    """A context with its trailing spaces, which lm-eval would move to the continuation."""

    __slots__ = ()

    def rstrip(self, chars: str | None = None, /) -> str:
        """Return the text unchanged."""
        return self


class LossAtLength(ConfigurableTask):  # type: ignore[misc]
    """A task that scores every window after its first character."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        config.pop("class", None)
        super().__init__(config=config)

    def construct_requests(self, doc: dict[str, Any], ctx: str, **others: Any) -> Instance:
        """One request per window."""
        return Instance(
            request_type="loglikelihood",
            doc=doc,
            arguments=(WholeContext(doc["first"]), doc["rest"]),
            idx=0,
            metadata=others["metadata"],
        )


def windows(length: int, tokens: int = TOKENS, **_: Any) -> dict[str, datasets.Dataset]:
    """Windows of at most `tokens` bytes in total, each split into its first character and the rest.

    >>> window = windows(256, tokens=1024)["test"][0]
    >>> len((window["first"] + window["rest"]).encode())
    257
    """
    corpus = standard_library("validation")
    count = SameTokens(corpus, (length,), at_most=tokens).count
    # A character has at most four bytes.
    text = bytes(corpus.read(0, min(count + 4, len(corpus))))
    edges = [_character_start(text, index) for index in range(0, count + 1, length)]
    rows = []
    for start, end in pairwise(edges):
        window = text[start:end].decode() + text[end : end + 4].decode(errors="ignore")[0]
        rows.append({"first": window[0], "rest": window[1:]})
    return {"test": datasets.Dataset.from_list(rows)}


def score_loss(doc: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Loss or log-likelihood of a window, and its number of bytes, for each metric."""
    likelihood, count = results[0][0], len(doc["rest"].encode())
    return {"loss": (-likelihood, count), "byte_perplexity": (likelihood, count)}


def examples(length: int, examples: int = EXAMPLES, **options: Any) -> dict[str, datasets.Dataset]:
    """The first examples of a length; `options` may hold fields of ``NeedleFormat``, others are ignored.

    >>> row = examples(512, examples=2, needles=1)["test"][0]
    >>> row["prompt"].endswith("\\n"), len(row["cities"])
    (True, 1)
    """
    known = {field.name for field in fields(NeedleFormat)}
    given = {name: value for name, value in options.items() if name in known}
    task = NeedleTask(standard_library("validation"), get_encoding("bytes"), NeedleFormat(**given))
    rows = []
    for number in range(examples):
        example = task.example(length, number)
        prompt = bytes(example.tokens[: example.answer_start].tolist())
        rows.append(
            {
                "prompt": prompt.decode(errors="replace"),
                "cities": [needle.city for needle in example.needles],
                "numbers": [needle.number for needle in example.needles],
                "between": task.format.between,
                "entry": task.format.entry,
            }
        )
    return {"test": datasets.Dataset.from_list(rows)}


def score_needles(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Number of needles in an answer, and number of needles asked for."""
    needles = [
        Needle(city, number, (0, 0), (0, 0))
        for city, number in zip(doc["cities"], doc["numbers"], strict=True)
    ]
    form = NeedleFormat(between=doc["between"], entry=doc["entry"])
    # An answer that runs on spoils its own last entry, so every answer counts as ended.
    hits = needles_found(results[0], True, needles, form)
    return {"found": (sum(hits), len(hits))}


def mean(scored: Iterable[tuple[float, int]]) -> float:
    """Mean loss in nats per byte, or share of needles found, from sums and counts.

    >>> mean([(1, 3), (2, 3)])
    0.5
    """
    sums, counts = zip(*scored, strict=True)
    return float(sum(sums) / sum(counts))


def _character_start(text: bytes, index: int) -> int:
    """Index of the first byte of the character that contains byte `index`."""
    while 0x80 <= text[index] < 0xC0:
        index -= 1
    return index
