"""Compiled kernels for CPUs, forward, backward and decoding: see csrc/.

Inputs are in float32 or half precision; all sums are in float32. The kernels read tensors in
place and support the whole contract; this module packs the arguments and allocates the results.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..theory.transform import scale_invariant_slopes
from ._opaque import Gradients, no_gradients, register_opaque
from ._tables import fold
from .contract import AttentionCall
from .cpu_library import CALL, LIBRARY, NUMBERS, RESULTS, UNAVAILABLE_REASON
from .visibility import TENSORS

STORAGES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_LIMIT = 2**63 - 1
OUT_OF_MEMORY = 1
# Explicit, because users may change torch's defaults.
FLOAT32: Any = {"dtype": torch.float32, "device": "cpu"}
FLOAT64: Any = {"dtype": torch.float64, "device": "cpu"}
NO_RESULTS, BY_DISTANCE = (0,) * len(RESULTS), RESULTS.index("grad_affine")
NO_ROWS, NO_KEY_BIAS = (0, 0) * len(TENSORS), (0, 0, 0)
NOTHING = frozenset([type(None)])
_tensors, _numbers = attrgetter(*TENSORS), attrgetter(*NUMBERS)


def unavailable_reason(device: torch.device) -> str | None:
    """Why the backend cannot run on a device."""
    if device.type != "cpu":
        return f"it runs on CPUs, not on {device.type}"
    return UNAVAILABLE_REASON


def unsupported_reason(call: AttentionCall, return_lse: bool) -> str | None:
    """Why the backend does not support a call."""
    if call.query.dtype not in STORAGES:
        return f"it computes in float32, not in {call.query.dtype}"
    return None


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output ``[B, Hq, Lq, Dv]`` and log-sum-exp ``[B, Hq, Lq]``, both float32."""
    if call.is_empty:
        return call.nothing_seen()
    rows = call.query.shape[:3]
    out = torch.empty(*rows, call.value.shape[3], **FLOAT32)
    lse = torch.empty(rows, **FLOAT32)
    assert LIBRARY is not None
    packed, _alive = _packed(call, out, lse)
    _check(LIBRARY.sia_forward(packed))
    return out, lse


def backward(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
    *,
    unrounded: bool = False,
) -> Gradients:
    """Gradients of all inputs; those of the affine only if `affine_grads`."""
    inputs = (call.query, call.key, call.value)
    if call.is_empty:
        return no_gradients(call, affine_grads, unrounded=unrounded)
    out, lse, grad_out, grad_lse = (t.contiguous() for t in (out, lse, grad_out, grad_lse))
    grads = [torch.empty(t.shape, **FLOAT32) for t in inputs]
    assert LIBRARY is not None
    by_distance = far_tau = None
    if affine_grads:
        packed, _alive = _packed(call, out, lse)
        length = LIBRARY.sia_affine_length(packed)
        _check(OUT_OF_MEMORY if length < 0 else 0)
        heads = call.query.shape[1]
        by_distance = torch.zeros(heads, 2, length, **FLOAT64)
        far_tau = torch.zeros(heads, **FLOAT64)
    key_bias = None if call.key_bias is None else torch.empty(call.key_bias.shape, **FLOAT32)
    packed, _alive = _packed(
        call, out, lse, grad_out, grad_lse, *grads, key_bias, by_distance, far_tau
    )
    _check(LIBRARY.sia_backward(packed))
    if call.key_bias is not None and key_bias is not None:
        key_bias = _like(call.key_bias, key_bias)
    if not unrounded:
        grads = [_like(t, g) for t, g in zip(inputs, grads, strict=True)]
    query, key, value = grads
    if by_distance is None or far_tau is None:
        return Gradients(query, key, value, key_bias, None, None, None)
    return Gradients(query, key, value, key_bias, *_affine_gradients(call, by_distance, far_tau))


def _affine_gradients(
    call: AttentionCall, by_distance: Tensor, far_tau: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the tables or of tau, from gradients by head and distance."""
    gain, bias = by_distance.unbind(1)
    if call.tau is not None:
        distance = torch.arange(gain.shape[1], **FLOAT64)
        gain_slope, bias_slope = scale_invariant_slopes(distance, call.tau.double().unsqueeze(-1))
        tau = (gain * gain_slope + bias * bias_slope).sum(-1) + far_tau
        return None, None, fold(tau, call.tau).to(call.tau.dtype)
    assert call.gain is not None
    assert call.bias is not None
    missing = call.gain.shape[1] - gain.shape[1]
    tables = ((gain, call.gain), (bias, call.bias))
    gain, bias = (fold(F.pad(grad, (0, missing)), t).to(t.dtype) for grad, t in tables)
    return gain, bias, None


def _like(tensor: Tensor, grad: Tensor) -> Tensor:
    """A gradient in the dtype and the layout of its tensor, as autograd expects it."""
    if tensor.dtype == grad.dtype and tensor.is_contiguous():
        return grad
    return torch.empty_like(tensor).copy_(grad)


def _check(failure: int) -> None:
    if failure == OUT_OF_MEMORY:
        raise MemoryError("the cpu backend ran out of memory")
    if failure:
        raise RuntimeError(f"the cpu backend failed with code {failure}")


def _packed(call: AttentionCall, *results: Tensor | None) -> tuple[bytes, list[Any]]:
    """The call as the kernels read it, and the tensors that must stay alive while they run.

    Written for speed: short calls spend much of their time here.
    """
    query, key, value = call.query, call.key, call.value
    query_strides, key_strides, value_strides = query.stride(), key.stride(), value.stride()
    if not query_strides[3] == key_strides[3] == value_strides[3] == 1:
        # The kernels read rows whose columns are contiguous.
        query, key, value = (t if t.stride(3) == 1 else t.contiguous() for t in (query, key, value))
        query_strides, key_strides, value_strides = query.stride(), key.stride(), value.stride()
    batch, heads, queries, head_dim = query.shape
    _, key_heads, keys, _ = key.shape
    gain, bias, tau, key_bias = call.gain, call.bias, call.tau, call.key_bias
    biases: Sequence[int] = NO_KEY_BIAS
    if key_bias is not None:
        key_bias = key_bias if key_bias.stride(2) == 1 else key_bias.contiguous()
        biases = key_bias.data_ptr(), *key_bias.stride()[:2]
    if gain is not None and bias is not None:
        gain, bias = _contiguous(gain, torch.float32), _contiguous(bias, torch.float32)
    if tau is not None:
        tau = _contiguous(tau, torch.float64)
    by_row = _tensors(call.visibility)
    rows: Sequence[int] = NO_ROWS
    if not NOTHING.issuperset(map(type, by_row)):
        by_row = tuple(t if t is None or _has_columns(t) else t.contiguous() for t in by_row)
        rows = [number for tensor in by_row for number in _rows(tensor)]
    addresses = [0 if result is None else result.data_ptr() for result in results]
    by_distance = results[BY_DISTANCE] if len(results) > BY_DISTANCE else None
    packed = CALL.pack(
        STORAGES[query.dtype],
        torch.get_num_threads(),
        batch,
        heads,
        key_heads,
        queries,
        keys,
        head_dim,
        value.shape[3],
        query.data_ptr(),
        *query_strides[:3],
        key.data_ptr(),
        *key_strides[:3],
        value.data_ptr(),
        *value_strides[:3],
        *biases,
        *rows,
        *[NO_LIMIT if number is None else number for number in _numbers(call.visibility)],
        call.visibility.dimensions,
        call.scale,
        *_rows(gain),
        *_rows(bias),
        0 if gain is None else gain.shape[1],
        *_rows(tau),
        *addresses,
        *NO_RESULTS[len(addresses) :],
        0 if by_distance is None else by_distance.shape[2],
    )
    return packed, [query, key, value, key_bias, gain, bias, tau, by_row, results]


def _has_columns(tensor: Tensor) -> bool:
    """Whether what belongs to a batch row lies side by side."""
    return tensor.stride(1) == 1 if tensor.ndim == 2 else tensor.is_contiguous()


def _contiguous(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    return tensor.detach().to(dtype).contiguous()


def _rows(tensor: Tensor | None) -> tuple[int, int]:
    """Address and row stride of a tensor; the stride is 0 if one row serves all."""
    if tensor is None:
        return 0, 0
    return tensor.data_ptr(), tensor.stride(0) if tensor.shape[0] > 1 else 0


attention = register_opaque("cpu", forward, backward)
