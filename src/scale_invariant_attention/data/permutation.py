"""Random orders of any length that are computed place by place and never stored."""

import hashlib
from math import isqrt

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 4


class Permutation:
    """A random order of 0 to `size - 1`, fixed by `key`; `permutation[places]` costs no table.

    A Feistel network on a grid: a place is a column and a row, and each round moves the column by a
    hash of the row, and then the row by a hash of the column. Every move can be undone, so no two
    places meet. The grid has a few cells more than `size`; who lands there goes on until outside.

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

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at each of these places."""
        moved = self._moved(places.astype(np.uint64))
        while (outside := moved >= self.size).any():
            moved[outside] = self._moved(moved[outside])
        return moved.astype(np.int64)

    def _moved(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        columns, rows = np.uint64(self._columns), np.uint64(self._rows)
        row, column = np.divmod(places, columns)
        for column_key, row_key in self._keys:
            column = (column + _mixed(row ^ column_key) % columns) % columns
            row = (row + _mixed(column ^ row_key) % rows) % rows
        return row * columns + column


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits in which every bit depends on every bit (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
