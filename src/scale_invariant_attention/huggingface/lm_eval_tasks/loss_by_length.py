"""The loss at a context length as an lm-eval task, on the same bytes at every length.

The windows are those of `sia evaluate` on the standard library: contiguous, with the given number of
bytes, of which all but the first are predicted, and the byte after them. lm-eval passes text, which
cannot be cut inside a character, so a window that would start inside one starts with that character.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from ...data import SameTokens, standard_library

# The same number as in `sia evaluate`.
TOKENS = 65_536


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
    for start, last in pairwise(edges):
        window = text[start : _character_end(text, last)].decode()
        rows.append({"first": window[0], "rest": window[1:]})
    return {"test": datasets.Dataset.from_list(rows)}


def score(doc: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Log-likelihood and number of bytes of a window, for each metric."""
    scored = results[0][0], len(doc["rest"].encode())
    return {"loss": scored, "byte_perplexity": scored}


def mean_loss(scored: Iterable[tuple[float, int]]) -> float:
    """Mean loss in nats per byte.

    >>> mean_loss([(-30.0, 10), (-10.0, 10)])
    2.0
    """
    likelihoods, counts = zip(*scored, strict=True)
    return float(-sum(likelihoods) / sum(counts))


def _character_start(text: bytes, index: int) -> int:
    """Index of the first byte of the character that contains byte `index`."""
    while 0x80 <= text[index] < 0xC0:
        index -= 1
    return index


def _character_end(text: bytes, start: int) -> int:
    """Index after the last byte of the character that starts at `start`."""
    end = start + 1
    while end < len(text) and 0x80 <= text[end] < 0xC0:
        end += 1
    return end
