"""FlexAttention, compiled: for GPUs, and for inference on CPUs.

Lengths, offsets, tau, window and sinks reach the compiled kernel as data, so that changing them
causes no recompilation. Batch size, head counts and head sizes are fixed in a kernel.
"""

import shutil
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ._flex_kernel import BLOCK, Kernel, kernel_for
from ._opaque import register_opaque
from .contract import AttentionCall
from .numerics import finite_part, mark_bad_keys, surely_finite, without_autocast


def unavailable_reason(device: torch.device) -> str | None:
    """Why FlexAttention does not run on a device."""
    # Code that is being compiled has a compiler, and the search for one cannot be traced.
    if device.type == "cuda" or torch.compiler.is_compiling():
        return None
    if device.type != "cpu":
        return f"FlexAttention is compiled for cuda and cpu devices, not for {device.type}"
    if not torch.cpu._is_avx2_supported():
        return "FlexAttention on CPUs needs AVX2"
    if not any(shutil.which(compiler) for compiler in ("g++", "clang++", "c++")):
        return "FlexAttention on CPUs needs a C++ compiler at run time, and none was found"
    return None


# Products of tensor cores have at least this many terms.
SMALLEST_GPU_HEAD = 16


def unsupported_reason(call: AttentionCall, return_lse: bool) -> str | None:
    """Why FlexAttention does not support a call."""
    if call.key_bias is not None and call.key_bias.requires_grad and torch.is_grad_enabled():
        # FlexAttention sums gradients of captured tensors atomically, in no fixed order.
        return "it has no gradient for key_bias; use 'tiled', or key_bias.detach()"
    if call.visibility.coordinates is not None:
        return "it has no coordinates; use 'tiled'"
    if call.affine_requires_grad:
        return "it has no gradients for the gain and bias tables or tau; use 'tiled'"
    if call.query.dtype == torch.float64:
        return "it computes in float32, not in float64; use 'tiled' or 'reference'"
    if call.query.device.type == "cpu":
        if call.requires_grad:
            return "FlexAttention has no backward on CPUs; use 'tiled', or torch.no_grad()"
        if return_lse:
            return "FlexAttention has no log-sum-exp on CPUs; use 'tiled'"
    smallest = min(call.query.shape[3], call.value.shape[3])
    if call.query.device.type == "cuda" and smallest < SMALLEST_GPU_HEAD:
        return f"on GPUs it takes head sizes from {SMALLEST_GPU_HEAD}, not {smallest}; use 'tiled'"
    return None


def attention(call: AttentionCall, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Output ``[B, Hq, Lq, Dv]`` in the input dtype and, if requested, the log-sum-exp."""
    if call.query.device.type == "cpu":
        return _cpu_operator(call)[0], None
    if call.is_empty:
        out, lse = call.nothing_seen()
        return out.to(call.query.dtype), lse
    with without_autocast(call.query.device):
        attend = _padded_kernel(call, return_lse)
        return attend(call.query, *mark_bad_keys(call.key, call.value))


def _cpu_forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    nothing, no_lse = call.nothing_seen()
    if call.is_empty:
        return nothing, no_lse
    # One kernel for all modes of autograd: none of them has a backward.
    with torch.inference_mode(False), torch.no_grad():
        attend = _padded_kernel(_with_finite_key_bias(call), return_lse=False)
        inputs = (call.query, call.key, call.value)
        out, _ = attend(*(finite_part(tensor) for tensor in inputs))
        out = out.float()
        spoiling = inputs if call.key_bias is None else (*inputs, call.key_bias)
        if not all(surely_finite(tensor) for tensor in spoiling):
            out = out.masked_fill(_sees_bad(call).unsqueeze(-1), torch.nan)
    # FlexAttention has no log-sum-exp here, and unsupported_reason() refuses calls that ask for it.
    return out, no_lse


# Opaque on CPUs even to an enclosing torch.compile, whose kernel would serve one length only.
_cpu_operator = register_opaque("flex", _cpu_forward, None)


def _padded_kernel(call: AttentionCall, return_lse: bool) -> Kernel:
    """Attention for a call, padded to sizes that kernels support, its result cut back."""
    padded = _with_second_query(call)
    if call.query.device.type == "cpu":
        padded = _with_whole_key_blocks(padded)
    rows = call.query.shape[2]
    query_padding = padded.query.shape[2] - rows
    key_padding = padded.key.shape[2] - call.key.shape[2]
    kernel = kernel_for(padded, return_lse)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        query = F.pad(query, (0, 0, query_padding, 0))
        key, value = (F.pad(tensor, (0, 0, 0, key_padding)) for tensor in (key, value))
        out, lse = kernel(query, key, value)
        return out[:, :, -rows:], None if lse is None else lse[:, :, -rows:]

    return attend


def _sees_bad(call: AttentionCall) -> Tensor:
    """Which rows ``[B, Hq, Lq]`` see a value that is not finite, computed by blocks of queries.

    The kernel for CPUs loses NaN scores, so it is given finite parts only.
    """
    bad_query = ~torch.isfinite(call.query).all(-1)
    good_key = torch.isfinite(call.key).all(-1) & torch.isfinite(call.value).all(-1)
    bad_key, unhidden = ~good_key.repeat_interleave(call.group, 1), None
    if call.key_bias is not None:
        bad_key = bad_key | ~torch.isfinite(call.key_bias)
        unhidden = ~torch.isneginf(call.key_bias).unsqueeze(2)
    visibility, rows = call.visibility_with_positions(), []
    for start in range(0, call.query.shape[2], BLOCK):
        queries = slice(start, start + BLOCK)
        visible = visibility.tile(queries, slice(None)).visible.unsqueeze(1)
        if unhidden is not None:
            visible = visible & unhidden
        bad = bad_key.unsqueeze(2) | bad_query[:, :, queries].unsqueeze(3)
        rows.append((visible & bad).any(-1))
    return torch.cat(rows, 2)


def _with_finite_key_bias(call: AttentionCall) -> AttentionCall:
    """Zeros for key biases of infinity and NaN; those that hide keys are left."""
    if call.key_bias is None or surely_finite(call.key_bias):
        return call
    return replace(call, key_bias=call.key_bias.nan_to_num(nan=0, posinf=0, neginf=-torch.inf))


def _with_second_query(call: AttentionCall) -> AttentionCall:
    """Duplicate a single query: a kernel compiled for one row would serve one row only."""
    if call.query.shape[2] > 1:
        return call

    def twice(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.expand(-1, 2)

    visibility = replace(
        call.visibility,
        query_positions=twice(call.visibility.query_positions),
        query_documents=twice(call.visibility.query_documents),
    )
    return replace(call, query=call.query.expand(-1, -1, 2, -1), visibility=visibility)


def _with_whole_key_blocks(call: AttentionCall) -> AttentionCall:
    """Append masked keys up to a whole number of blocks.

    torch's kernel for CPUs is wrong for some lengths of a last, shorter block: with 8 keys more than
    a multiple of 16, rows that see few of them are sometimes zeros or NaN.
    """
    visibility = call.visibility_with_positions()
    mask = visibility.key_mask
    if mask is None:
        shape = (call.key.shape[0], call.key.shape[2])
        mask = torch.ones(shape, dtype=torch.bool, device=call.key.device)
    padding = -call.key.shape[2] % BLOCK

    def extended(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else F.pad(tensor, (0, padding), value=0)

    return replace(
        call,
        key=F.pad(call.key, (0, 0, 0, padding)),
        value=F.pad(call.value, (0, 0, 0, padding)),
        key_bias=extended(call.key_bias),
        visibility=replace(
            visibility,
            key_positions=extended(visibility.key_positions),
            key_mask=extended(mask),
            key_documents=extended(visibility.key_documents),
        ),
    )
