"""Windows of a stream as batches for training and as evaluation sets, the same for every model.

Training batches are computed for any step directly. Window `w` of an epoch has the inputs `w * length`
to `w * length + length - 1`, and the tokens one further as targets: it reads `length + 1` tokens, and
the last target of a window is the first input of the next. Every token but the first is a target
exactly once per epoch, except for a remainder of fewer than `length` tokens at the end.
"""

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import count
from math import isqrt, lcm
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import integer
from .tokens import TokenArray, TokenSource

ORDERS = ("sequential", "shuffled")
# Rounds of the Feistel network that shuffles.
_ROUNDS = 4


class Windows:
    """Batches by step: `windows[step]` is inputs and targets, int64 `[batch_size, length]` each.

    A batch depends on source, sizes, order, seed and step alone: to resume, continue with the next
    step. Steps never end; an epoch follows the other, even within a batch. Windows run across shards
    and documents.

    Args:
        source: the tokens.
        length: tokens per window.
        batch_size: windows per step, over all ranks.
        order: "sequential" reads the source from its start, again and again; "shuffled" takes all
            windows in a new random order every epoch.
        seed: of the random orders.

    >>> from scale_invariant_attention.data import TokenStream
    >>> stream = TokenStream([np.arange(10, dtype=np.uint8)], vocab_size=256, document_start=0)
    >>> inputs, targets = Windows(stream, length=3, batch_size=2)[0]
    >>> inputs.tolist(), targets.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """

    def __init__(
        self,
        source: TokenSource,
        *,
        length: int,
        batch_size: int,
        order: str = "sequential",
        seed: int = 0,
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.source = source
        self.length = integer("length", length, at_least=1)
        self.batch_size = integer("batch_size", batch_size, at_least=1)
        self.order = order
        self.seed = index(seed)
        self.per_epoch = (len(source) - 1) // length
        if self.per_epoch < 1:
            raise ValueError(
                f"length must be below the {len(source)} tokens of the source, got {length}: a "
                f"window needs one token more than its length"
            )
        self._rows = range(batch_size)

    def rank(self, rank: int, *, of: int) -> "Windows":
        """The rows of every batch that belong to one of several processes, together the whole batch.

        >>> from scale_invariant_attention.data import standard_library
        >>> windows = Windows(standard_library("train"), length=8, batch_size=4)
        >>> inputs, targets = windows[5]
        >>> second_half, _ = windows.rank(1, of=2)[5]
        >>> torch.equal(second_half, inputs[2:])
        True
        """
        part = copy(self)
        part._rows = rows_of_rank(self._rows, rank, of)
        return part

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step."""
        return read_windows(self.source, self.starts(step), self.length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All batches from step 0 on, without end."""
        return map(self.__getitem__, count())

    def starts(self, step: int) -> NDArray[np.int64]:
        """Positions in the source where the windows of a step start."""
        if index(step) < 0:
            raise IndexError(f"step must not be negative, got {step}")
        first = index(step) * self.batch_size
        epochs, windows = np.divmod(first + np.array(self._rows, np.int64), self.per_epoch)
        if self.order == "shuffled":
            for epoch in np.unique(epochs):
                rows = epochs == epoch
                windows[rows] = _epoch_order(self.per_epoch, self.seed, int(epoch))[windows[rows]]
        return windows * self.length


def rows_of_rank(rows: range, rank: int, of: int) -> range:
    """The rows of a batch that belong to one of several processes, the same number for each.

    >>> rows_of_rank(range(8), 1, of=4)
    range(2, 4)
    """
    if not 0 <= rank < of:
        raise ValueError(f"rank must be from 0 to {of - 1}, one of {of}, got {rank}")
    if len(rows) % of:
        raise ValueError(f"the {len(rows)} rows of a batch must be a multiple of the {of} ranks")
    count = len(rows) // of
    return rows[rank * count : (rank + 1) * count]


def read_windows(
    source: TokenSource, starts: NDArray[np.int64], length: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the windows at these starts, int64 `[len(starts), length]` each."""
    tokens = np.empty((len(starts), length + 1), np.int64)
    for row, start in zip(tokens, starts.tolist(), strict=True):
        row[:] = source.read(start, start + length + 1)
    if tokens.size and tokens.max() >= source.vocab_size:
        start = starts[tokens.max(1).argmax()]
        raise ValueError(
            f"the {length + 1} tokens from {start} on contain token {tokens.max()}, and the "
            f"vocabulary has {source.vocab_size}: the data is damaged or of another kind; sia data "
            f"check finds the file"
        )
    return torch.tensor(tokens[:, :-1]), torch.tensor(tokens[:, 1:])


class SameTokens:
    """The same targets at several lengths, each scored once, so that lengths can be compared.

    At each length the windows are contiguous and their targets are the same `count` tokens: only the
    amount of context before a target differs. `at_most` bounds `count`, which is a multiple of all
    lengths. The first `skip` tokens of the source are left out.

    >>> from scale_invariant_attention.data import standard_library
    >>> tokens = SameTokens(standard_library("validation"), (256, 1024), at_most=10_000)
    >>> tokens.count
    9216
    >>> sum(targets.numel() for _, targets in tokens.batches(1024, batch_size=4))
    9216
    """

    def __init__(
        self,
        source: TokenSource,
        lengths: Sequence[int],
        *,
        at_most: int | None = None,
        skip: int = 0,
    ) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths must be one or more, each at least 1, got {list(lengths)}")
        multiple = lcm(*lengths)
        self.skip = integer("skip", skip, at_least=0)
        available = max(0, len(source) - 1 - skip)
        targets = available if at_most is None else min(at_most, available)
        self.source = source
        self.lengths = tuple(lengths)
        self.count = targets // multiple * multiple
        if self.count < 1:
            after = f" after the first {skip}" if skip else ""
            limit = "" if at_most is None else f", of which at most {at_most} are to be scored"
            raise ValueError(
                f"lengths {list(lengths)} need a multiple of {multiple} tokens to score, and there are "
                f"{targets}: the source has {available}{after}{limit}; choose lengths that divide each "
                f"other, shorter lengths or more tokens"
            )

    def batches(self, length: int, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, int64 `[batch_size, length]`, the last batch with the remainder.

        Several processes can share the work: `itertools.islice(batches, rank, None, ranks)`.
        """
        if length not in self.lengths:
            raise ValueError(f"length must be one of {list(self.lengths)}, got {length}")
        starts = self.skip + np.arange(0, self.count, length, dtype=np.int64)
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
    return read_windows(source, np.linspace(0, room, count).astype(np.int64), length)[0]


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
    integer("batch_size", batch_size, at_least=1)
    return (
        read_windows(source, starts[first : first + batch_size], length)
        for first in range(0, len(starts), batch_size)
    )


class Permutation:
    """A random order of 0 to `size - 1`, fixed by `key`, computed per index without a table.

    A Feistel network on a grid: an index is a column and a row, and each round shifts the column by a
    hash of the row, and then the row by a hash of the column. Every shift can be undone, so no two
    indices collide. The grid has a few more cells than `size`; indices that land there are permuted
    again.

    >>> order = Permutation(10, "any text")[np.arange(10)]
    >>> sorted(order.tolist()) == list(range(10))
    True
    """

    def __init__(self, size: int, key: str) -> None:
        self.size = size
        self._columns = isqrt(size - 1) + 1
        self._rows = -(-size // self._columns)
        digest = hashlib.blake2b(key.encode(), digest_size=16 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u8").reshape(_ROUNDS, 2).astype(np.uint64)

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at these indices of the order."""
        permuted = self._permuted(indices.astype(np.uint64))
        while (outside := permuted >= self.size).any():
            permuted[outside] = self._permuted(permuted[outside])
        return permuted.astype(np.int64)

    def _permuted(self, indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
        columns, rows = np.uint64(self._columns), np.uint64(self._rows)
        row, column = np.divmod(indices, columns)
        for column_key, row_key in self._keys:
            column = (column + _mixed(row ^ column_key) % columns) % columns
            row = (row + _mixed(column ^ row_key) % rows) % rows
        return row * columns + column


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits in which every bit depends on every bit (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=8)
def _epoch_order(size: int, seed: int, epoch: int) -> Permutation:
    return Permutation(size, f"seed {seed}, epoch {epoch}")
