"""How every schedule reads a tensor of distances, and how a long range of them is walked."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .precision import in_float64


def at_distance(distance: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """`formula` at `distance`, computed in float64.

    A floating `distance` gives its own dtype back; an integer one gives float64. Distances below
    zero belong to keys that causality hides: they count as zero, so that they stay finite.

    >>> at_distance(torch.tensor([-3, 0, 4]), torch.sqrt)
    tensor([0., 0., 2.], dtype=torch.float64)
    """
    return in_float64("distance", distance, lambda t: formula(t.clamp(min=0)))


def distance_chunks(start: int, stop: int, size: int) -> Iterator[Tensor]:
    """The integers of `[start, stop)` in order, as int64 tensors of at most `size` elements.

    >>> [chunk.tolist() for chunk in distance_chunks(0, 5, size=2)]
    [[0, 1], [2, 3], [4]]
    """
    for first in range(start, stop, size):
        yield torch.arange(first, min(first + size, stop))
