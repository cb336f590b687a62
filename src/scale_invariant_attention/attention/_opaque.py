"""Backends as torch operators with their own forward and backward, opaque to tracing.

They are registered with torch.library, so that torch.compile, fake tensors and opcheck know them.
Such a backend reads data (positions, masks) when it runs, never while it is traced.

Operators return their output in the compute dtype, and it is rounded to the input dtype afterwards:
backward starts from the unrounded output, because rounding to half precision would spoil gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from ._affine import check_positive
from .contract import ARGUMENTS, TENSOR_TYPES, AttentionCall, check_table_length
from .numerics import compute_dtype, without_autocast
from .visibility import check_places

NAMESPACE = "scale_invariant_attention"
SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    bool: "bool",
    float: "float",
    int: "SymInt",
    int | None: "SymInt?",
}
CALL = ", ".join(f"{SCHEMA_TYPES[kind]} {name}" for name, kind in ARGUMENTS.items())
TENSORS = sum(kind in TENSOR_TYPES for kind in ARGUMENTS.values())
REFERENCE = 'use backend="reference", which has them'
PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))


class Gradients(NamedTuple):
    """Gradients of the first arguments of a call; None if it lacks one or needs no gradient of it."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_bias: Tensor | None
    gain: Tensor | None
    bias: Tensor | None
    tau: Tensor | None


def no_gradients(call: AttentionCall, affine_grads: bool, *, unrounded: bool) -> Gradients:
    """The gradients of a call without a pair of a query and a key: zeros."""
    dtype = compute_dtype(call.query.dtype) if unrounded else call.query.dtype
    affine = (call.gain, call.bias, call.tau)
    query, key, value = (
        torch.zeros_like(t, dtype=dtype) for t in (call.query, call.key, call.value)
    )
    key_bias = None if call.key_bias is None else torch.zeros_like(call.key_bias)
    return Gradients(
        query,
        key,
        value,
        key_bias,
        *(torch.zeros_like(t) if affine_grads and t is not None else None for t in affine),
    )


# The arguments with gradients, and those among them that are gain, bias and tau.
DIFFERENTIABLE = len(Gradients._fields)
AFFINE = slice(Gradients._fields.index("gain"), DIFFERENTIABLE)

Forward = Callable[[AttentionCall], tuple[Tensor, Tensor]]


class Backward(Protocol):
    """A backward pass, from the whole output and log-sum-exp of its queries.

    `call` may hold only some of the keys that its queries see: then the gradients are those of its part.
    """

    def __call__(
        self,
        call: AttentionCall,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor,
        affine_grads: bool,
        *,
        unrounded: bool = False,
    ) -> Gradients:
        """Gradients of all inputs; those of the affine only if `affine_grads`.

        With `unrounded`, the gradients of query, key and value are in the compute dtype, to be summed.
        That of the key bias always is, as the key bias itself.
        """


def register_opaque(name: str, forward: Forward, backward: Backward | None) -> Forward:
    """Register the operators ``name`` and ``name_backward``, and return the function to call."""

    def run(*arguments: Any) -> tuple[Tensor, Tensor]:
        call = AttentionCall.from_arguments(*arguments)
        # These checks need values, which a traced call does not have.
        check_table_length(call)
        check_places(call.visibility)
        if call.tau is not None:
            check_positive("tau", call.tau)
        with without_autocast(call.query.device):
            return forward(call)

    attention = torch.library.custom_op(
        f"{NAMESPACE}::{name}", run, mutates_args=(), schema=f"({CALL}) -> (Tensor, Tensor)"
    )

    @attention.register_fake
    def _(*arguments: Any) -> tuple[Tensor, Tensor]:
        call = AttentionCall.from_arguments(*arguments)
        rows, dtype = call.query.shape[:3], compute_dtype(call.query.dtype)
        return (
            call.query.new_empty(*rows, call.value.shape[3], dtype=dtype),
            call.query.new_empty(rows, dtype=dtype),
        )

    if backward is not None:
        _register_backward(name, attention, backward)

    def call_operator(call: AttentionCall) -> tuple[Tensor, Tensor]:
        if _can_skip_dispatcher(call):
            with without_autocast(call.query.device):
                out, lse = forward(call)
        else:
            _refuse_transforms(name, call)
            out, lse = attention(*call.arguments())
        return (out if out.dtype == call.query.dtype else out.to(call.query.dtype)), lse

    return call_operator


def _can_skip_dispatcher(call: AttentionCall) -> bool:
    """Whether no gradient is needed and nothing traces, transforms or fakes the call.

    Then the backend is called directly: the dispatcher takes longer than a short call itself.
    """
    return not (
        torch.compiler.is_compiling()
        or call.requires_grad
        or call.query.is_meta
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or not PLAIN.issuperset(map(type, call.tensors()))
        or call.query.is_neg()
        or call.key.is_neg()
        or call.value.is_neg()
    )


def _refuse_transforms(name: str, call: AttentionCall) -> None:
    """Refuse derivatives of `torch.func`, and tangents, which an operator would silently drop."""
    if torch.compiler.is_compiling():
        return
    if torch._C._functorch.maybe_current_level() is not None and call.requires_grad:
        raise NotImplementedError(
            f"backend {name!r} has no derivatives inside torch.func; {REFERENCE}"
        )
    if forward_ad._current_level < 0:
        return
    given = (tensor for tensor in call.tensors() if tensor is not None)
    if any(forward_ad.unpack_dual(t).tangent is not None for t in given):  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            f"backend {name!r} has no forward-mode derivative; use reverse mode"
        )


def _register_backward(name: str, attention: CustomOpDef, backward: Backward) -> None:
    def run(
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor,
        affine_grads: bool,
        *arguments: Any,
    ) -> tuple[Tensor, ...]:
        call = AttentionCall.from_arguments(*arguments)
        with without_autocast(out.device):
            grads = backward(call, out, lse, grad_out, grad_lse, affine_grads)
        # Operators return only tensors: an empty one stands for None.
        return tuple(out.new_empty(0) if grad is None else grad for grad in grads)

    attention_backward = torch.library.custom_op(
        f"{NAMESPACE}::{name}_backward",
        run,
        mutates_args=(),
        schema="(Tensor out, Tensor lse, Tensor grad_out, Tensor grad_lse, bool affine_grads, "
        f"{CALL}) -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})",
    )

    @attention_backward.register_fake
    def _(*arguments: Any) -> tuple[Tensor, ...]:
        out, _, _, _, affine_grads, *call = arguments
        inputs, affine = call[: AFFINE.start], call[AFFINE]
        given = (*inputs, *(tensor if affine_grads else None for tensor in affine))
        return tuple(out.new_empty(0) if t is None else torch.empty_like(t) for t in given)

    def second_derivative(*_: Any) -> None:
        raise NotImplementedError(f"backend {name!r} has no second derivatives; {REFERENCE}")

    attention_backward.register_autograd(second_derivative)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.settings = inputs[TENSORS:]
        ctx.save_for_backward(*inputs[:TENSORS], *output)

    def autograd_backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        needed = ctx.needs_input_grad
        grads = attention_backward(
            out, lse, grad_out, grad_lse, any(needed[AFFINE]), *tensors, *ctx.settings
        )
        learned = [grad if want else None for grad, want in zip(grads, needed, strict=False)]
        return (*learned, *[None] * (len(needed) - len(learned)))

    attention.register_autograd(autograd_backward, setup_context=setup_context)
