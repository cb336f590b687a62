"""The loss at a context length as a task of lm-eval: the same bytes at every length.

The windows are those of `sia evaluate` on the standard library: contiguous, of so many bytes, in each of
which all bytes but the first are to be predicted, and the one behind the window. They are text here,
which cannot be cut inside a character: a window that would begin there begins with the character.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from ...data import SameTokens, standard_library

# As many as `sia evaluate` scores.
TOKENS = 65_536


class WholeContext(str):
    """A context that keeps spaces at its end, which lm-eval would take for part of what follows."""

    __slots__ = ()

    def rstrip(self, chars: str | None = None, /) -> str:
        """The same."""
        return self


class LossAtLength(ConfigurableTask):  # type: ignore[misc]
    """A task of windows, each scored behind its first character."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        config.pop("class", None)
        super().__init__(config=config)

    def construct_requests(self, doc: dict[str, Any], ctx: str, **others: Any) -> Instance:
        """One request a window."""
        return Instance(
            request_type="loglikelihood",
            doc=doc,
            arguments=(WholeContext(doc["first"]), doc["rest"]),
            idx=0,
            metadata=others["metadata"],
        )


def windows(length: int, tokens: int = TOKENS, **_: Any) -> dict[str, datasets.Dataset]:
    """The windows of at most `tokens` bytes together, each as its first character and the rest.

    >>> window = windows(256, tokens=1024)["test"][0]
    >>> len((window["first"] + window["rest"]).encode())
    257
    """
    corpus = standard_library("validation")
    count = SameTokens(corpus, (length,), at_most=tokens).count
    # A character has four bytes at most.
    text = bytes(corpus.read(0, min(count + 4, len(corpus))))
    edges = [_first_byte(text, place) for place in range(0, count + 1, length)]
    rows = []
    for start, last in pairwise(edges):
        window = text[start : _end(text, last)].decode()
        rows.append({"first": window[0], "rest": window[1:]})
    return {"test": datasets.Dataset.from_list(rows)}


def score(doc: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """The log-likelihood of a window and its bytes, for each metric."""
    scored = results[0][0], len(doc["rest"].encode())
    return {"loss": scored, "byte_perplexity": scored}


def mean_loss(scored: Iterable[tuple[float, int]]) -> float:
    """In nats a byte.

    >>> mean_loss([(-30.0, 10), (-10.0, 10)])
    2.0
    """
    likelihoods, counts = zip(*scored, strict=True)
    return float(-sum(likelihoods) / sum(counts))


def _first_byte(text: bytes, place: int) -> int:
    """Where the character begins that a byte belongs to."""
    while 0x80 <= text[place] < 0xC0:
        place -= 1
    return place


def _end(text: bytes, place: int) -> int:
    """Where the character ends that begins at `place`."""
    place += 1
    while place < len(text) and 0x80 <= text[place] < 0xC0:
        place += 1
    return place
