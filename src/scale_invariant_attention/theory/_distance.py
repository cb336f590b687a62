"""Formulas evaluated in float64 whatever the dtype given, and ranges of distances in chunks."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def in_float64(name: str, value: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """`formula` of `value` in float64; `name` is what an error calls `value`.

    A floating `value` gets its own dtype back; an integer one gets float64.

    >>> in_float64("x", torch.tensor(4), torch.sqrt)
    tensor(2., dtype=torch.float64)
    >>> in_float64("x", torch.tensor(4.0), torch.sqrt)
    tensor(2.)
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor, got {value!r} ({type(value).__name__}); "
            f"wrap it with torch.tensor"
        )
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(
            f"{name} must have an integer or floating dtype, got {value!r}; "
            f"convert it with {name}.to(torch.int64) or {name}.real"
        )
    result = formula(value.to(torch.float64))
    return result.to(value.dtype) if value.is_floating_point() else result


def at_distance(distance: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """`formula` at `distance`, computed as by `in_float64`.

    Distances below zero belong to keys that causality hides: they count as zero, to stay finite.

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
