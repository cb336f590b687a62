"""Formulas are evaluated in float64, whatever the dtype of the tensor they are given."""

from collections.abc import Callable

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
