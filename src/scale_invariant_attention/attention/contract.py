"""The contract of the op: every argument is checked here and brought to one form.

Shapes: B batch, Hq and Hk query and key heads, Lq and Lk lengths, D and Dv head sizes.
"""

from dataclasses import dataclass, field, fields
from math import sqrt
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..arguments import shown
from ._affine import NUMBERS, DistanceAffine, look_up, tau_tensor
from ._coordinates import farthest_distance
from .numerics import autocasts, check_dense, compute_dtype, holds_values, plain_number
from .visibility import Visibility


@dataclass(eq=False, slots=True)
class AttentionCall:
    """A checked call."""

    query: Tensor  # [B, Hq, Lq, D]
    key: Tensor  # [B, Hk, Lk, D]
    value: Tensor  # [B, Hk, Lk, Dv]
    key_bias: Tensor | None  # [B, Hq, Lk] in the compute dtype; strides may be 0
    gain: Tensor | None  # [1 or Hq, length]; None with tau
    bias: Tensor | None  # [1 or Hq, length]; None with tau
    tau: Tensor | None  # [1 or Hq]; None with tables
    visibility: Visibility  # checked: tensors [1 or B, length], coordinates [1 or B, n, length]
    scale: float
    # tau if it was given as a number, for kernels that have it built in: reading the tensor would stall
    # a GPU. Operators do not get it.
    tau_number: float | None = field(default=None, metadata={"operator": False})

    def arguments(self) -> tuple[Any, ...]:
        """The call as the arguments of a registered operator, which :data:`ARGUMENTS` names."""
        visibility = self.visibility
        return tuple(
            getattr(visibility if name in IN_VISIBILITY else self, name) for name in ARGUMENTS
        )

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors among the arguments."""
        return _tensors(self)

    @classmethod
    def from_arguments(cls, *arguments: Any) -> "AttentionCall":
        """The inverse of :meth:`arguments`."""
        given = dict(zip(ARGUMENTS, arguments, strict=True))
        visibility = Visibility(**{name: given.pop(name) for name in IN_VISIBILITY})
        return cls(visibility=visibility, **given)

    def visibility_with_positions(self) -> Visibility:
        """The visibility with default positions filled in."""
        return self.visibility.with_positions(
            self.query.shape[2], self.key.shape[2], self.query.device
        )

    def tables_at(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and bias of the tables at distances ``[1 or B, q, k]``: ``[1 or B, 1 or Hq, q, k]``."""
        assert self.gain is not None
        assert self.bias is not None
        gain, bias = look_up(self.gain, distance), look_up(self.bias, distance)
        return gain.transpose(0, 1), bias.transpose(0, 1)

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair of a query and a key."""
        return self.query.shape[2] == 0 or self.key.shape[2] == 0 or self.query.shape[0] == 0

    def nothing_seen(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, in the compute dtype, of queries that see no key."""
        rows, dtype = self.query.shape[:3], compute_dtype(self.query.dtype)
        out = self.query.new_zeros(*rows, self.value.shape[3], dtype=dtype)
        return out, out.new_full(rows, -torch.inf)

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def affine_requires_grad(self) -> bool:
        """Whether the tables or tau need gradients."""
        return torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (self.gain, self.bias, self.tau)
        )

    @property
    def requires_grad(self) -> bool:
        """Whether any input needs a gradient."""
        if not torch.is_grad_enabled():
            return False
        inputs = (self.query, self.key, self.value, self.key_bias)
        return self.affine_requires_grad or any(t is not None and t.requires_grad for t in inputs)


TENSOR_TYPES = (Tensor, Tensor | None)
STRIDED = torch.strided
# Kernels hold it in float32.
LARGEST_SCALE = torch.finfo(torch.float32).max
IN_VISIBILITY = tuple(part.name for part in fields(Visibility))


def _argument_types() -> dict[str, Any]:
    """Type of every field, with the fields of the visibility inlined; tensors first."""
    types: dict[str, Any] = {}
    for whole in fields(AttentionCall):
        inner = fields(Visibility) if whole.type is Visibility else (whole,)
        types |= {part.name: part.type for part in inner if part.metadata.get("operator", True)}
    return dict(sorted(types.items(), key=lambda item: item[1] not in TENSOR_TYPES))


# The arguments of the registered operators, by name.
ARGUMENTS = _argument_types()
_tensors = attrgetter(
    *(
        f"visibility.{name}" if name in IN_VISIBILITY else name
        for name, kind in ARGUMENTS.items()
        if kind in TENSOR_TYPES
    )
)


def checked_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    affine: DistanceAffine | None,
    tau: float | Tensor | None,
    visibility: Visibility,
    scale: float | None = None,
    key_bias: Tensor | None = None,
) -> AttentionCall:
    """Check every argument and return the call in its one form; `affine` comes before `tau`."""
    _check_inputs(query, key, value)
    query, key, value = _autocast(query, key, value)
    if not (query.dtype == key.dtype == value.dtype):
        raise TypeError(
            "query, key and value must have the same dtype, "
            f"got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    batch, heads, query_length, head_dim = query.shape
    scale = 1 / sqrt(head_dim) if scale is None else _checked_scale(scale)
    visibility = visibility.checked(batch, query_length, key.shape[2], query.device)
    if not isinstance(tau, NUMBERS):
        tau = plain_number(tau)
    gain, bias, taus = _affine_tensors(affine, tau, heads, query.device)
    number = float(tau) if isinstance(tau, NUMBERS) and taus is not None else None
    if key_bias is not None:
        key_bias = _checked_key_bias(key_bias, query, key)
    call = AttentionCall(
        query, key, value, key_bias, gain, bias, taus, visibility, float(scale), number
    )
    check_table_length(call)
    return call


def _checked_scale(scale: object) -> float:
    number = scale if isinstance(scale, NUMBERS) else plain_number(scale)
    if isinstance(number, bool) or not isinstance(number, NUMBERS):
        raise TypeError(f"scale must be a number or None for 1/sqrt(head_dim), got {scale!r}")
    if not -LARGEST_SCALE <= number <= LARGEST_SCALE:
        raise ValueError(f"scale must be finite in float32, got {shown(scale)}")
    return float(number)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        dtype = tensor.dtype
        if not dtype.is_floating_point or dtype.itemsize < 2:
            raise TypeError(f"{name} must be float64, float32, bfloat16 or float16, got {dtype}")
        if tensor.is_nested or tensor.ndim != 4:
            check_dense(name, tensor)
            raise ValueError(
                f"{name} must be [batch, heads, sequence, head_dim], "
                f"got {tensor.ndim} dimensions: {tuple(tensor.shape)}"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name} is on {tensor.device} but query is on {query.device}: "
                "all tensors of a call must be on one device"
            )
    if not (query.layout is key.layout is value.layout is STRIDED):
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_dense(name, tensor)
    batch, heads, _, head_dim = query.shape
    key_batch, key_heads, key_length, key_dim = key.shape
    value_batch, value_heads, value_length, value_dim = value.shape
    if heads == 0 or key_heads == 0 or head_dim == 0 or value_dim == 0:
        wrong = "query, key and value need at least one head and a head_dim of at least 1"
    elif not batch == key_batch == value_batch:
        wrong = "query, key and value must have the same batch size"
    elif key_heads != value_heads:
        wrong = "key and value must have the same number of heads"
    elif heads % key_heads != 0:
        wrong = "the number of query heads must be a multiple of the number of key heads"
    elif key_length != value_length:
        wrong = "key and value must have the same length"
    elif head_dim != key_dim:
        wrong = "query and key must have the same head_dim"
    else:
        return
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    raise ValueError(f"{wrong}, got {shapes}")


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast does for SDPA: everything but float64 to the autocast dtype."""
    device = tensors[0].device
    if not autocasts(device):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def _checked_key_bias(key_bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The key bias of every batch row and query head, in the compute dtype."""
    if not isinstance(key_bias, Tensor):
        raise TypeError(f"key_bias must be a tensor, got {type(key_bias).__name__}")
    check_dense("key_bias", key_bias)
    dtype = key_bias.dtype
    if not dtype.is_floating_point or dtype.itemsize < 2:
        hint = "; to hide keys, use key_mask" if dtype == torch.bool else ""
        raise TypeError(
            f"key_bias must be float64, float32, bfloat16 or float16, got {dtype}{hint}"
        )
    batch, heads = query.shape[:2]
    _, key_heads, length, _ = key.shape
    shape = tuple(key_bias.shape)
    if len(shape) != 3 or not (
        shape[0] in (1, batch) and shape[1] in (1, key_heads, heads) and shape[2] == length
    ):
        raise ValueError(
            f"key_bias must be [batch, heads, keys] = [{batch}, {key_heads} or {heads}, {length}], "
            f"where batch and heads may be 1; got shape {shape}"
        )
    if key_bias.device != query.device:
        raise ValueError(f"key_bias is on {key_bias.device} but query is on {query.device}")
    wide = key_bias.to(compute_dtype(query.dtype)).resolve_neg()
    if shape[1] not in (1, heads):
        wide = wide.repeat_interleave(heads // key_heads, 1)
    return wide.expand(batch, heads, length)


def _affine_tensors(
    affine: Any, tau: float | Tensor | None, heads: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The tables as [1 or heads, length], or tau as [1 or heads]."""
    if affine is None:
        if isinstance(tau, Tensor):
            check_dense("tau", tau)
        if isinstance(tau, Tensor) and tau.shape not in ((), (heads,)):
            raise ValueError(
                f"tau must be a number, [] or [heads] = [{heads}], got shape {tuple(tau.shape)}"
            )
        if isinstance(tau, Tensor) and tau.device != device:
            raise ValueError(f"tau is on {tau.device} but query is on {device}")
        return None, None, tau_tensor(tau, device)
    if not isinstance(affine, DistanceAffine):
        hint = "; to hide keys, use key_mask, key_documents or window"
        raise TypeError(
            f"affine must be a DistanceAffine(gain, bias), got {type(affine).__name__}"
            f"{hint if isinstance(affine, Tensor) else ''}"
        )
    for name, table in (("gain", affine.gain), ("bias", affine.bias)):
        if table.device != device:
            raise ValueError(f"affine.{name} is on {table.device} but query is on {device}")
        if table.ndim == 2 and table.shape[0] != heads:
            raise ValueError(
                f"affine.{name} has {table.shape[0]} rows, one per head, but query has {heads} heads"
            )
    length = affine.length
    return affine.gain.reshape(-1, length), affine.bias.reshape(-1, length), None


def check_table_length(call: AttentionCall) -> None:
    """Raise if the tables do not reach the largest distance.

    Operators check again when they run: a traced call has positions without values.
    """
    if call.gain is None or call.is_empty:
        return
    length, window = call.gain.shape[1], call.visibility.window
    if window is not None and call.visibility.coordinates is not None:
        # A distance below the window may lie between the last two integers.
        window += 1
    if window is not None and window <= length:
        # A window hides keys beyond it, so tables need not reach farther.
        return
    largest = _largest_distance(call)
    if isinstance(largest, Tensor) and largest.device.type != "cpu":
        # Reading it would stall the GPU; it reports the failure on its own.
        torch._assert_async(
            largest < length,
            f"the tables of affine cover {length} distances, but tokens are farther apart: "
            "make them longer",
        )
    elif largest is not None:
        check_reach(length, int(largest), window)


def check_reach(length: int, largest: int, window: int | None) -> None:
    """Raise if tables of that length do not reach the largest distance that a window leaves."""
    if largest >= length:
        needed = largest + 1 if window is None else min(largest + 1, window)
        raise ValueError(
            f"the tables of affine cover {length} distances, but this call needs "
            f"{needed} (its largest distance is {needed - 1}): make them longer"
        )


def _largest_distance(call: AttentionCall) -> int | Tensor | None:
    """The largest distance of any pair; None while positions have no values."""
    visibility = call.visibility
    if visibility.coordinates is not None:
        queries, keys = visibility.coordinates
        return farthest_distance(queries, keys) if holds_values(queries) else None
    query_positions, key_positions = visibility.query_positions, visibility.key_positions
    if query_positions is None or key_positions is None:
        query_length, key_length = call.query.shape[2], call.key.shape[2]
        return key_length - 1 if visibility.is_causal else max(query_length, key_length) - 1
    if not holds_values(query_positions):
        return None
    largest = (query_positions.amax(1) - key_positions.amin(1)).amax()
    if not visibility.is_causal:
        largest = largest.maximum((key_positions.amax(1) - query_positions.amin(1)).amax())
    return largest
