"""FlexAttention's FLASH kernels (FlashAttention-4), for consecutive positions and tau as a number.

Those kernels are slow, or refuse, if the function that turns scores into logits reads a tensor. Here
it reads none: distances come from the indices, and tau, scale, lengths, window and sinks are constants.
A new value of any of them compiles a new kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    FlexKernelOptions,
    flex_attention,
)

from ._flex_kernel import as_list, visible_blocks
from .contract import AttentionCall
from .numerics import mark_bad_keys, without_autocast

# The first generation of GPUs with these kernels, and the first that needs blocks of 256 queries.
HOPPER, BLACKWELL = 9, 10
OPTIONS: FlexKernelOptions = {"BACKEND": "FLASH"}

Program = Callable[..., tuple[Tensor, Tensor | None]]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def unavailable_reason(device: torch.device) -> str | None:
    """Why FlashAttention-4 does not run on a device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "FlashAttention-4 runs on NVIDIA GPUs only"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if torch.cuda.get_device_capability(device)[0] < HOPPER:
        return "FlashAttention-4 needs a GPU of compute capability 9.0 or higher"
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "flash-attn-4 is not installed: pip install --pre flash-attn-4"
    return None


def unsupported_reason(call: AttentionCall, return_lse: bool) -> str | None:
    """Why this form of FlexAttention does not support a call."""
    if call.key_bias is not None:
        return "its kernels read no tensor besides query, key and value: no key_bias; use 'flex'"
    if call.visibility.coordinates is not None:
        return "it has no coordinates; use 'tiled'"
    visibility = call.visibility
    if visibility.query_positions is not None or visibility.key_positions is not None:
        return "it needs consecutive positions, as they are by default; use 'flex'"
    if visibility.key_documents is not None or visibility.key_mask is not None:
        return "it has no documents and no key mask; use 'flex'"
    if call.tau_number is None:
        return "it needs tau as a number, not as a tensor or tables; use 'flex'"
    if call.query.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 and float16, not in {call.query.dtype}; use 'flex'"
    return None


def attention(call: AttentionCall, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Output ``[B, Hq, Lq, Dv]`` in the input dtype and, if requested, the log-sum-exp."""
    if call.is_empty:
        out, lse = call.nothing_seen()
        return out.to(call.query.dtype), lse
    major, _ = torch.cuda.get_device_capability(call.query.device)
    kind = kind_of(call, return_lse, query_block=256 if major >= BLACKWELL else 128)
    run = program(kind, OPTIONS) if torch.compiler.is_compiling() else _compiled(kind)
    with without_autocast(call.query.device):
        inputs = (call.query, *mark_bad_keys(call.key, call.value))
        return run(*(tensor.contiguous() for tensor in inputs), *block_lists(call, kind))


@dataclass(frozen=True)
class Kind:
    """Everything that is fixed in a kernel: all but the numbers in query, key and value."""

    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    tau: float
    scale: float
    is_causal: bool
    window: int | None
    sinks: int
    query_block: int
    key_block: int
    return_lse: bool
    requires_grad: bool


def kind_of(
    call: AttentionCall, return_lse: bool, query_block: int = 128, key_block: int = 128
) -> Kind:
    """The kind of a call that is supported."""
    assert call.tau_number is not None
    return Kind(
        tuple(tensor.shape for tensor in (call.query, call.key, call.value)),
        call.query.dtype,
        call.query.device,
        call.tau_number,
        call.scale,
        call.visibility.is_causal,
        call.visibility.window,
        call.visibility.sinks,
        query_block,
        key_block,
        return_lse,
        call.requires_grad,
    )


def block_lists(call: AttentionCall, kind: Kind) -> tuple[Tensor, ...]:
    """Counts and indices of the partial and of the full key blocks of every query block."""
    visibility = call.visibility_with_positions()
    partial, full = visible_blocks(visibility, kind.query_block, kind.key_block)
    return *as_list(partial), *as_list(full)


def program(kind: Kind, kernel_options: FlexKernelOptions | None) -> Program:
    """The function to compile: attention on query, key, value and the lists of blocks."""
    queries, keys = kind.shapes[0][2], kind.shapes[1][2]
    offset = keys - queries
    tau, scale, is_causal, window, sinks = (
        kind.tau,
        kind.scale,
        kind.is_causal,
        kind.window,
        kind.sinks,
    )

    def logit(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        # Without a clamp: the logits of hidden keys are finite, and do not count.
        u = torch.log(1 + (i + offset - j).abs().float() / tau)
        transformed = torch.sqrt(1 + 2 * u) * score - 2 * u
        return torch.where(j < sinks, score, transformed) if sinks else transformed

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i + offset >= j if is_causal else j >= 0
        if window is not None:
            near = (i + offset - j).abs() < window
            seen = seen & (near | (j < sinks) if sinks else near)
        return seen

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        partial_counts: Tensor,
        partial_blocks: Tensor,
        full_counts: Tensor,
        full_blocks: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        block_mask = BlockMask.from_kv_blocks(
            partial_counts,
            partial_blocks,
            full_counts,
            full_blocks,
            BLOCK_SIZE=(kind.query_block, kind.key_block),
            mask_mod=visible,
            seq_lengths=(queries, keys),
            compute_q_blocks=kind.requires_grad,
        )
        result: Any = flex_attention(
            query,
            key,
            value,
            score_mod=logit,
            block_mask=block_mask,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=kernel_options,
            return_aux=AuxRequest(lse=True) if kind.return_lse else None,
        )
        if not kind.return_lse:
            return result, None
        out, aux = result
        return out, aux.lse

    return run


@lru_cache(maxsize=64)
def _compiled(kind: Kind) -> Program:
    compiled: Program = torch.compile(  # type: ignore[call-overload]
        program(kind, OPTIONS), fullgraph=True, dynamic=False, isolate_recompiles=True
    )
    return compiled
