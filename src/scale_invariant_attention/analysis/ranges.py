"""Ranges of distance that grow by a factor, such as decades."""

from collections.abc import Sequence
from itertools import pairwise

from ..arguments import integer, ratio_above_one

DECADE = 10.0


def range_edges(length: int, ratio: float = DECADE) -> tuple[int, ...]:
    """Edges of ranges up to `length`: 0, `ratio`, and then each `ratio` times the one before.

    The last range ends at `length`, even if that truncates it.

    >>> range_edges(4096), range_edges(20, ratio=2)
    ((0, 10, 100, 1000, 4096), (0, 2, 4, 8, 16, 20))
    """
    length = integer("length", length, at_least=1)
    ratio = ratio_above_one(ratio)
    edges, edge = [0], ratio
    while round(edge) < length:
        if round(edge) > edges[-1]:
            edges.append(round(edge))
        edge *= ratio
    return (*edges, length)


def checked_edges(edges: Sequence[int]) -> tuple[int, ...]:
    """Check that edges rise, starting at 0.

    >>> checked_edges([0, 10, 50])
    (0, 10, 50)
    """
    whole = tuple(integer("edges", edge, at_least=0) for edge in edges)
    rising = len(whole) > 1 and all(low < high for low, high in pairwise(whole))
    if not rising or whole[0] != 0:
        raise ValueError(
            f"edges must be two or more increasing distances that start at 0, got {list(edges)}"
        )
    return whole


def range_name(start: int, stop: int) -> str:
    """Label of a range in tables: its first and last distance.

    >>> range_name(10, 100), range_name(0, 1)
    ('10-99', '0')
    """
    return f"{start:,}" if stop == start + 1 else f"{start:,}-{stop - 1:,}"
