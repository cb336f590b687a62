"""Cross-entropy over a projection to the vocabulary, in memory that does not grow with the context.

The logits of a chunk of tokens are computed, reduced and discarded before the next chunk. The mean
weights all tokens equally, so its gradients are known up to one factor as soon as the logits are, and
are computed right away: the projection is computed once. Losses of single tokens may get any weights, so
their gradients compute it again.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from ..arguments import integer
from ..attention.numerics import autocasts, compute_dtype, without_autocast

IGNORED = -100


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    reduction: Literal["mean", "none"] = "mean",
    chunk_elements: int = 2**25,
) -> Tensor:
    """Cross-entropy of the logits ``hidden @ weight.T``, without storing all of them at once.

    ``hidden`` is ``[..., width]``, ``weight`` ``[vocabulary, width]`` of the same dtype, and
    ``targets`` integer ``[...]``; tokens whose target is ``IGNORED`` (-100) do not count.
    ``reduction="mean"`` gives the mean over the tokens that count, and 0 with zero gradients if there
    are none; ``"none"`` gives the loss of every token, shaped like ``targets``, 0 where ignored.

    Products are computed in the dtype of the inputs, or of autocast; everything after them, and the
    result, is float32 (float64 for float64). At most ``chunk_elements`` logits, but at least those of
    one token, are in memory at a time. Gradients cannot be differentiated again.

    >>> hidden = torch.zeros(2, 3, 8, requires_grad=True)
    >>> targets = torch.tensor([[0, 1, 2], [3, IGNORED, 0]])
    >>> loss = projected_cross_entropy(hidden, torch.ones(4, 8), targets)
    >>> round(loss.exp().item(), 4)
    4.0
    >>> projected_cross_entropy(hidden, torch.ones(4, 8), targets, reduction="none").shape
    torch.Size([2, 3])
    """
    product_dtype = _check(hidden, weight, targets, reduction)
    chunk_elements = integer("chunk_elements", chunk_elements, at_least=1)
    loss: Tensor = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        targets.reshape(-1).long(),
        reduction == "mean",
        torch.is_grad_enabled() and hidden.requires_grad,
        torch.is_grad_enabled() and weight.requires_grad,
        product_dtype,
        chunk_elements,
    )
    return loss if reduction == "mean" else loss.reshape(targets.shape)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Mean, or losses ``[tokens]``, of hidden ``[tokens, width]`` and int64 targets ``[tokens]``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        mean: bool,
        want_hidden: bool,
        want_weight: bool,
        product_dtype: torch.dtype,
        chunk_elements: int,
    ) -> Tensor:
        now = mean and (want_hidden or want_weight)
        losses: Tensor
        losses, grad_hidden, grad_weight = _losses_and_gradients(
            hidden,
            weight,
            targets,
            None,
            now and want_hidden,
            now and want_weight,
            product_dtype,
            chunk_elements,
        )
        ctx.mean = mean
        ctx.wanted = want_hidden, want_weight
        ctx.settings = product_dtype, chunk_elements
        ctx.dtypes = hidden.dtype, weight.dtype
        if not mean:
            ctx.save_for_backward(hidden, weight, targets)
            return losses
        count = (targets != IGNORED).sum().clamp(min=1)
        ctx.save_for_backward(grad_hidden, grad_weight, count)
        return losses.sum() / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Not once_differentiable: it would treat a loss that nothing follows as a constant.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError(
                "projected_cross_entropy has no second derivative; call backward without "
                "create_graph=True, or compute the logits and use torch.nn.functional.cross_entropy"
            )
        want_hidden, want_weight = ctx.wanted
        if ctx.mean:
            slope_hidden, slope_weight, count = ctx.saved_tensors
            # In the compute dtype: in float16, one over a large count would underflow.
            factor = grad / count
            grad_hidden = slope_hidden.to(factor.dtype) * factor if want_hidden else slope_hidden
            grad_weight = slope_weight * factor if want_weight else slope_weight
        else:
            hidden, weight, targets = ctx.saved_tensors
            _, grad_hidden, grad_weight = _losses_and_gradients(
                hidden, weight, targets, grad, want_hidden, want_weight, *ctx.settings
            )
        hidden_dtype, weight_dtype = ctx.dtypes
        return (
            grad_hidden.to(hidden_dtype) if want_hidden else None,
            grad_weight.to(weight_dtype) if want_weight else None,
            *[None] * 6,
        )


# A single operator to torch, so that a compiled graph does not grow with the number of chunks, serves
# all lengths, and never holds the logits of more than one chunk.
@torch.library.custom_op(
    "scale_invariant_attention::projected_cross_entropy",
    mutates_args=(),
    schema="(Tensor hidden, Tensor weight, Tensor targets, Tensor? factors, bool want_hidden, "
    "bool want_weight, ScalarType product_dtype, SymInt chunk_elements) -> (Tensor, Tensor, Tensor)",
)
def _losses_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    factors: Tensor | None,
    want_hidden: bool,
    want_weight: bool,
    product_dtype: torch.dtype,
    chunk_elements: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses ``[tokens]`` and the gradients of their sum, weighted by ``factors`` ``[tokens]``.

    The gradient of ``weight`` is in the compute dtype. Gradients that are not needed are empty tensors.
    """
    _check_values(targets, len(weight))
    losses, grad_hidden, grad_weight = _results(hidden, weight, want_hidden, want_weight)
    grad_weight.zero_()
    rows = max(1, chunk_elements // len(weight))
    with without_autocast(hidden.device):
        weight = weight.to(product_dtype)
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            _add_chunk(
                hidden[chunk].to(product_dtype),
                weight,
                targets[chunk],
                None if factors is None else factors[chunk],
                losses[chunk],
                grad_hidden[chunk] if want_hidden else None,
                grad_weight if want_weight else None,
            )
    return losses, grad_hidden, grad_weight


def _add_chunk(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    factors: Tensor | None,
    losses: Tensor,
    grad_hidden: Tensor | None,
    grad_weight: Tensor | None,
) -> None:
    """Write losses and the gradient of hidden, and add to that of weight, for one chunk."""
    ignored = targets == IGNORED
    target = targets.masked_fill(ignored, 0).unsqueeze(-1)
    # One buffer holds logits, then their exponentials, then the gradient of the logits.
    buffer = (hidden @ weight.T).to(losses.dtype)
    buffer -= buffer.amax(-1, keepdim=True)
    target_logit = buffer.gather(-1, target).squeeze(-1)
    mass = buffer.exp_().sum(-1)
    losses.copy_((mass.log() - target_logit).masked_fill_(ignored, 0))
    if grad_hidden is None and grad_weight is None:
        return
    buffer /= mass.unsqueeze(-1)
    buffer.scatter_add_(-1, target, buffer.new_full((), -1.0).expand_as(target))
    if factors is not None:
        buffer *= factors.unsqueeze(-1)
    # Filled, not multiplied: an ignored token may hold NaN.
    buffer.masked_fill_(ignored.unsqueeze(-1), 0)
    slope = buffer.to(hidden.dtype)
    if grad_hidden is not None:
        grad_hidden.copy_(slope @ weight)
    if grad_weight is not None and grad_weight.dtype == hidden.dtype:
        grad_weight.addmm_(slope.T, hidden)
    elif grad_weight is not None:
        grad_weight += slope.T @ hidden


@_losses_and_gradients.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, _, _, want_hidden, want_weight, *_ = arguments
    return _results(hidden, weight, want_hidden, want_weight)


def _results(
    hidden: Tensor, weight: Tensor, want_hidden: bool, want_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(hidden.dtype)
    return (
        hidden.new_empty(hidden.shape[0], dtype=dtype),
        hidden.new_empty(hidden.shape if want_hidden else 0),
        weight.new_empty(weight.shape if want_weight else 0, dtype=dtype),
    )


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str) -> torch.dtype:
    """Check the arguments, and return the dtype in which products are computed."""
    named = {"hidden": hidden, "weight": weight, "targets": targets}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device != hidden.device:
            raise ValueError(
                f"{name} must be on the device of hidden, {hidden.device}, got {tensor.device}"
            )
        if name != "targets" and not tensor.is_floating_point():
            raise TypeError(f"{name} must have a floating dtype, got {tensor.dtype}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets must have an integer dtype, got {targets.dtype}")
    if hidden.dim() == 0:
        raise ValueError("hidden must be [..., width], got a tensor without dimensions")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or weight.shape[0] == 0:
        raise ValueError(
            f"weight must be [vocabulary, width] with width {hidden.shape[-1]} as in hidden, "
            f"got {list(weight.shape)}"
        )
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets must have the leading shape of hidden, {list(hidden.shape[:-1])}, "
            f"got {list(targets.shape)}"
        )
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction must be 'mean' or 'none', got {reduction!r}")
    if torch.float64 not in (hidden.dtype, weight.dtype) and autocasts(hidden.device):
        return torch.get_autocast_dtype(hidden.device.type)
    if weight.dtype != hidden.dtype:
        raise TypeError(
            f"weight must have the dtype of hidden, {hidden.dtype}, got {weight.dtype}; "
            f"convert one of them, or use torch.autocast"
        )
    return hidden.dtype


def _check_values(targets: Tensor, vocabulary: int) -> None:
    # On other devices reading values means waiting, and torch's kernels assert the range themselves.
    if targets.device.type != "cpu":
        return
    bad = targets[((targets < 0) | (targets >= vocabulary)) & (targets != IGNORED)]
    if len(bad):
        raise ValueError(
            f"targets must be in 0..{vocabulary - 1}, the rows of weight, or {IGNORED} for tokens "
            f"that do not count, got {int(bad[0])}"
        )
