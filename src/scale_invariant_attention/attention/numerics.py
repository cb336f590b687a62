"""In which precision the op computes, and how far a NaN may travel.

One rule for every backend: a query that sees a non-finite key or value, or is itself non-finite,
gives NaN; a query that does not see it is not touched by it, to the bit. Multiplying by a zero weight
does not give that (0 * NaN is NaN), so the backends multiply by the finite parts and mark the rows.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays, everything narrower is computed and accumulated in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def finite_part(tensor: Tensor) -> Tensor:
    """`tensor` with zeros where it is NaN or infinite; the tensor itself where nothing is."""
    if surely_finite(tensor):
        return tensor
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A region in which autocast does not narrow what is computed."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def mark_bad_rows(rows: Tensor) -> Tensor:
    """NaN throughout every row ``[..., D]`` that is not finite."""
    if surely_finite(rows):
        return rows
    return rows.masked_fill(~torch.isfinite(rows).all(-1, keepdim=True), torch.nan)


def mark_bad_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """NaN in every key that is not finite, or whose value is not; and the finite part of the values.

    A NaN in the key is removed from the rows that do not see it by their masks.
    """
    if surely_finite(key) and surely_finite(value):
        return key, value
    good = torch.isfinite(key).all(-1, keepdim=True) & torch.isfinite(value).all(-1, keepdim=True)
    return key.masked_fill(~good, torch.nan), finite_part(value)


def holds_values(tensor: Tensor) -> bool:
    """Whether there are values to look at: not while tracing, nor in fake and meta tensors."""
    return not (torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta)


def surely_finite(tensor: Tensor) -> bool:
    """Whether it is known, at no cost that matters, that a tensor holds no NaN and no infinity."""
    # A sum needs no memory, and is NaN or infinite whenever an element is. Asking waits for a
    # device and cannot be traced: there the answer is "not surely", which is always right.
    if tensor.device.type != "cpu" or not holds_values(tensor):
        return False
    return bool(torch.isfinite(tensor.detach().sum()))
