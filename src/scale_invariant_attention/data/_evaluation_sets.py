"""Evaluation sets: the same tokens at every length, and documents of a minimum length."""

from collections.abc import Iterator, Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .tokens import TokenArray, TokenSource
from .windows import read_windows


class SameTokens:
    """The same targets at several lengths, each scored once, so that lengths can be compared.

    At each length the windows are contiguous and their targets are the tokens 1 to `count` of the
    source: only the amount of context before a target differs.

    Args:
        source: the tokens.
        lengths: the lengths to compare.
        at_most: upper bound on the number of targets, rounded down to a multiple of all lengths.

    >>> from scale_invariant_attention.data import standard_library
    >>> tokens = SameTokens(standard_library("validation"), (256, 1024), at_most=10_000)
    >>> tokens.count
    9216
    >>> sum(targets.numel() for _, targets in tokens.batches(1024, batch_size=4))
    9216
    """

    def __init__(
        self, source: TokenSource, lengths: Sequence[int], *, at_most: int | None = None
    ) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths must be one or more, each at least 1, got {list(lengths)}")
        multiple = lcm(*lengths)
        available = len(source) - 1
        targets = available if at_most is None else min(at_most, available)
        self.source = source
        self.lengths = tuple(lengths)
        self.count = targets // multiple * multiple
        if self.count < 1:
            raise ValueError(
                f"lengths {list(lengths)} need a multiple of {multiple} targets, and there are "
                f"{targets}: the source has {available}, and at_most is {at_most}; choose lengths "
                f"that divide each other, shorter lengths or more tokens"
            )

    def batches(self, length: int, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, int64 `[batch_size, length]`, the last batch with the remainder.

        Several processes can share the work: `itertools.islice(batches, rank, None, ranks)`.
        """
        if length not in self.lengths:
            raise ValueError(f"length must be one of {list(self.lengths)}, got {length}")
        starts = np.arange(0, self.count, length, dtype=np.int64)
        return _batches(self.source, starts, length, batch_size)


def spread_windows(source: TokenSource, length: int, count: int) -> Tensor:
    """`count` windows of `length` tokens, evenly spaced over the source, int64 `[count, length]`.

    They overlap if the source is short.

    >>> from scale_invariant_attention.data import standard_library
    >>> spread_windows(standard_library("validation"), length=1000, count=3).shape
    torch.Size([3, 1000])
    """
    room = len(source) - 1 - length
    if length < 1 or count < 1 or room < 0:
        raise ValueError(
            f"length and count must be at least 1, and length at most {len(source) - 1:,}, as the "
            f"source has {len(source):,} tokens; got {length:,} and {count:,}"
        )
    starts = np.linspace(0, room, count).astype(np.int64)
    return read_windows(source, starts, length)[0]


def documents(source: TokenSource, *, at_least: int = 1) -> Iterator[TokenArray]:
    """Documents of at least `at_least` tokens, each with the token that starts it.

    >>> from scale_invariant_attention.data import standard_library
    >>> longest = max(documents(standard_library("validation"), at_least=10_000), key=len)
    >>> len(longest) >= 10_000
    True
    """
    for start, stop in document_spans(source, at_least=at_least).tolist():
        yield source.read(start, stop)


def document_spans(source: TokenSource, *, at_least: int = 1) -> NDArray[np.int64]:
    """Start and end of each document of at least `at_least` tokens, `[documents, 2]`."""
    starts = source.document_starts
    spans = np.stack([starts, np.append(starts[1:], len(source))], axis=1)
    long_enough: NDArray[np.int64] = spans[spans[:, 1] - spans[:, 0] >= at_least]
    return long_enough


def document_batches(
    source: TokenSource, length: int, *, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets from the start of every document of at least `length + 1` tokens.

    Int64 `[batch_size, length]`, the last batch with the remainder. At position `p` a model has then
    seen the first `p` tokens of one document and nothing else.
    """
    spans = document_spans(source, at_least=length + 1)
    if not len(spans):
        longest = int(np.diff(document_spans(source)).max())
        raise ValueError(
            f"length must be below the {longest} tokens of the longest document, got {length}"
        )
    return _batches(source, spans[:, 0], length, batch_size)


def _batches(
    source: TokenSource, starts: NDArray[np.int64], length: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return (
        read_windows(source, starts[first : first + batch_size], length)
        for first in range(0, len(starts), batch_size)
    )
