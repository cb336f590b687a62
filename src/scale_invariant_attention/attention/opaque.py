"""Backends that are one operator to torch: their own forward and backward, opaque to tracing.

Registered with torch.library, so that torch.compile, fake tensors and opcheck know them. What such a
backend reads of its data (positions, masks) it reads when it runs, never while it is traced.

The operators give their output in the compute dtype, and it is rounded to that of the inputs behind
them: backward starts from the output, and in half precision a rounded one would spoil the gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from .contract import AttentionCall
from .numerics import compute_dtype

NAMESPACE = "scale_invariant_attention"


class Gradients(NamedTuple):
    """Gradients of the inputs; None for what the call has not or nobody asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    gain: Tensor | None
    bias: Tensor | None
    tau: Tensor | None


Forward = Callable[[AttentionCall], tuple[Tensor, Tensor]]
Backward = Callable[[AttentionCall, Tensor, Tensor, Tensor, Tensor, bool], Gradients]


def register_opaque(name: str, forward: Forward, backward: Backward | None) -> Forward:
    """Register the operators ``name`` and ``name_backward``, and return the function to call."""

    @torch.library.custom_op(f"{NAMESPACE}::{name}", mutates_args=())
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        tau: Tensor | None,
        query_positions: Tensor | None,
        key_positions: Tensor | None,
        key_mask: Tensor | None,
        query_documents: Tensor | None,
        key_documents: Tensor | None,
        is_causal: bool,
        scale: float,
        window: int | None,
        sinks: int,
    ) -> tuple[Tensor, Tensor]:
        call = AttentionCall(
            query,
            key,
            value,
            gain,
            bias,
            tau,
            query_positions,
            key_positions,
            key_mask,
            query_documents,
            key_documents,
            is_causal,
            scale,
            window,
            sinks,
        )
        with torch.autocast(query.device.type, enabled=False):
            return forward(call)

    @attention.register_fake
    def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        rows, dtype = query.shape[:3], compute_dtype(query.dtype)
        return (
            query.new_empty(*rows, value.shape[3], dtype=dtype),
            query.new_empty(rows, dtype=dtype),
        )

    if backward is not None:
        _register_backward(name, attention, backward)

    def call_operator(call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = attention(*call.arguments())
        return out.to(call.query.dtype), lse

    return call_operator


def _register_backward(name: str, attention: CustomOpDef, backward: Backward) -> None:
    @torch.library.custom_op(f"{NAMESPACE}::{name}_backward", mutates_args=())
    def attention_backward(
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor,
        affine_grads: bool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        tau: Tensor | None,
        query_positions: Tensor | None,
        key_positions: Tensor | None,
        key_mask: Tensor | None,
        query_documents: Tensor | None,
        key_documents: Tensor | None,
        is_causal: bool,
        scale: float,
        window: int | None,
        sinks: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        call = AttentionCall(
            query,
            key,
            value,
            gain,
            bias,
            tau,
            query_positions,
            key_positions,
            key_mask,
            query_documents,
            key_documents,
            is_causal,
            scale,
            window,
            sinks,
        )
        with torch.autocast(query.device.type, enabled=False):
            grads = backward(call, out, lse, grad_out, grad_lse, affine_grads)
        # An operator returns tensors only: nothing is an empty one.
        return tuple(query.new_empty(0) if grad is None else grad for grad in grads)  # type: ignore[return-value]

    @attention_backward.register_fake
    def _(
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor,
        affine_grads: bool,
        *inputs: Any,
    ) -> tuple[Tensor, ...]:
        data, affine = inputs[:3], inputs[3:6]
        absent = out.new_empty(0)
        return (
            *(torch.empty_like(tensor) for tensor in data),
            *(
                torch.empty_like(tensor) if affine_grads and tensor is not None else absent.clone()
                for tensor in affine
            ),
        )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        tensors, ctx.settings = inputs[:11], inputs[11:]
        ctx.save_for_backward(*tensors, *output)

    def autograd_backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        grads = attention_backward(
            out, lse, grad_out, grad_lse, any(wanted[3:6]), *tensors, *ctx.settings
        )
        wanted_grads = (grad if want else None for grad, want in zip(grads, wanted, strict=False))
        return (*wanted_grads, *[None] * (len(wanted) - len(grads)))

    attention.register_autograd(autograd_backward, setup_context=setup_context)
