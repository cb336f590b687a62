"""Precision of the op, and containment of NaN.

One rule for every backend: a query that sees a non-finite key or value, or is itself non-finite, gives
NaN; the result of any other query is bit-identical to that without it. Multiplying by a zero weight
would not achieve this (0 * NaN is NaN), so the backends multiply by the finite parts and mark the rows.
"""

from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

NO_CONTEXT: AbstractContextManager[object] = nullcontext()
# TF32 has the exponents of float32, and this many bits less.
TF32_DROPS = 13


def plain_number(value: Any) -> Any:
    """A number of NumPy or the like as one of Python; anything else as it is."""
    if isinstance(value, bool | Tensor) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def check_dense(name: str, tensor: Tensor) -> None:
    """Refuse sparse and nested tensors, which no backend reads."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"the layout {tensor.layout}"
        fix = "pad it, and hide the padding with key_mask" if tensor.is_nested else "use to_dense()"
        raise TypeError(f"{name} must be a dense tensor, got {kind}: {fix}")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64; float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def allows_tf32() -> bool:
    """Whether torch lets NVIDIA GPUs round the factors of float32 products to 10 bits."""
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")


def float32_precision() -> str:
    """How float32 is multiplied on NVIDIA GPUs: "tf32" or "ieee"."""
    return "tf32" if allows_tf32() else "ieee"


def multiplies_in_tf32(tensor: Tensor) -> bool:
    """Whether products of a tensor round their factors to TF32."""
    if tensor.device.type != "cuda" or torch.version.hip is not None:
        return False
    since_ampere = torch.cuda.get_device_capability(tensor.device) >= (8, 0)
    return since_ampere and tensor.dtype == torch.float32 and allows_tf32()


def round_to_tf32(tensor: Tensor) -> Tensor:
    """The nearest numbers of TF32; gradients pass as if nothing had been rounded."""
    half = 1 << (TF32_DROPS - 1)
    bits = tensor.detach().contiguous().view(torch.int32) + half
    rounded = (bits & -(1 << TF32_DROPS)).view(torch.float32)
    return tensor + (rounded - tensor).detach()


def finite_part(tensor: Tensor) -> Tensor:
    """`tensor` with zeros for NaN and infinities; the tensor itself if it has none."""
    if surely_finite(tensor):
        return tensor
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is enabled on a device."""
    # The first question, for all devices, takes a tenth of the time.
    return (
        torch._C._is_any_autocast_enabled()
        and device.type != "meta"
        and torch.is_autocast_enabled(device.type)
    )


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast."""
    if not autocasts(device):
        return NO_CONTEXT
    return torch.autocast(device.type, enabled=False)


def mark_bad_rows(rows: Tensor) -> Tensor:
    """Fill every row ``[..., D]`` that is not finite with NaN."""
    if surely_finite(rows):
        return rows
    return rows.masked_fill(~torch.isfinite(rows).all(-1, keepdim=True), torch.nan)


def mark_bad_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys, NaN where they or their values are not finite; and the finite part of the values.

    The mask removes a NaN key from the rows that do not see it.
    """
    if surely_finite(key) and surely_finite(value):
        return key, value
    good = torch.isfinite(key).all(-1, keepdim=True) & torch.isfinite(value).all(-1, keepdim=True)
    return key.masked_fill(~good, torch.nan), finite_part(value)


def holds_values(tensor: Tensor) -> bool:
    """Whether values can be read: not while tracing, nor from fake and meta tensors."""
    return not (torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta)


def surely_finite(tensor: Tensor) -> bool:
    """Whether a tensor is known, at negligible cost, to contain no NaN and no infinity."""
    # A sum needs no memory, and is NaN or infinite if any element is. Reading it waits for a GPU and
    # cannot be traced: there the answer is "not known", which is always correct.
    if tensor.device.type != "cpu" or not holds_values(tensor):
        return False
    return bool(torch.isfinite(tensor.detach().sum()))
