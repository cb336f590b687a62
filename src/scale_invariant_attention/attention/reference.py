"""The definition in plain torch: the oracle for every other backend.

    L_ij = gain(t) * scale * q_i . k_j + bias(t) + key_bias_j     over the visible keys j of query i
    out_i = sum_j exp(L_ij - lse_i) v_j,  lse_i = log sum_j exp(L_ij)

It stores the full score matrix, and is differentiable and traceable throughout.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..theory.transform import scale_invariant_gain_and_bias
from ._opaque import Gradients
from .contract import AttentionCall
from .numerics import compute_dtype, without_autocast
from .visibility import Visibility


def attention(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output ``[B, Hq, Lq, Dv]`` in the input dtype and log-sum-exp ``[B, Hq, Lq]``."""
    with without_autocast(call.query.device):
        out, lse = _attention(call)
        return out.to(call.query.dtype), lse


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, both in the compute dtype, without a graph."""
    with torch.no_grad():
        return _attention(call)


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
    """Gradients of all inputs by autograd; those of the affine only if `affine_grads`.

    With the keys of the call alone, the output is ``part`` and the log-sum-exp ``part_lse``. The whole
    output is the sum of ``share * part`` over all parts, with ``share = exp(part_lse - lse)``.
    """
    inputs = {"query": call.query, "key": call.key, "value": call.value}
    others = {"key_bias": call.key_bias}
    if affine_grads:
        others |= {"gain": call.gain, "bias": call.bias, "tau": call.tau}
    inputs |= {name: tensor for name, tensor in others.items() if tensor is not None}
    dtype = compute_dtype(call.query.dtype)
    leaves = {
        name: tensor.detach().to(dtype if unrounded and tensor.ndim == 4 else tensor.dtype)
        for name, tensor in inputs.items()
    }
    with torch.enable_grad():
        for leaf in leaves.values():
            leaf.requires_grad_()
        part, part_lse = _attention(replace(call, **leaves))  # type: ignore[arg-type]
    unwanted = (grad_out == 0).all(-1) & (grad_lse == 0)
    silent = unwanted | (lse == -torch.inf) | (part_lse == -torch.inf)
    share = torch.exp(part_lse.detach() - lse)
    apart = (grad_out * (part.detach() - out)).sum(-1) + grad_lse
    grads = torch.autograd.grad(
        (part, part_lse),
        tuple(leaves.values()),
        (
            (share.unsqueeze(-1) * grad_out).masked_fill(silent.unsqueeze(-1), 0).to(dtype),
            (share * apart).masked_fill(silent, 0).to(dtype),
        ),
        materialize_grads=True,
    )
    by_name = dict(zip(leaves, grads, strict=True))
    return Gradients(**{name: by_name.get(name) for name in Gradients._fields})  # type: ignore[arg-type]


def _attention(call: AttentionCall) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(call.query.dtype)
    query = call.query.to(dtype)
    key = call.key.to(dtype).repeat_interleave(call.group, dim=1)
    value = call.value.to(dtype).repeat_interleave(call.group, dim=1)
    visibility = call.visibility_with_positions()
    gain, bias = _gain_and_bias(call, visibility, dtype)
    # A bias of -inf hides a key too, and must not leave a row of only -inf to differentiate.
    visible = visibility.visible.unsqueeze(1) & (bias != -torch.inf)

    bad_query = ~torch.isfinite(query).all(-1)
    bad_key = ~(torch.isfinite(key).all(-1) & torch.isfinite(value).all(-1))
    if call.key_bias is not None:
        # Sums follow the layout, and equal values must give equal bits in any.
        key_bias = call.key_bias.contiguous()
        visible = visible & (key_bias != -torch.inf).unsqueeze(-2)
        bad_key = bad_key | ~torch.isfinite(key_bias)
        bias = bias + torch.where(torch.isfinite(key_bias), key_bias, 0).unsqueeze(-2)
    # The output of a query that sees no key is zero, even if the query itself is NaN.
    bad = (visible & (bad_query.unsqueeze(-1) | bad_key.unsqueeze(-2))).any(-1)
    spoiling = torch.zeros(bad.shape, dtype=dtype, device=bad.device).masked_fill(bad, torch.nan)

    query, key, value = (torch.where(torch.isfinite(t), t, 0) for t in (query, key, value))
    scores = call.scale * (query @ key.transpose(-2, -1))
    scores = _SpoilGradients.apply(scores, bad.unsqueeze(-1))  # type: ignore[no-untyped-call]
    # So does a logit that overflows to -inf; one that overflows to inf makes its row NaN.
    visible = visible & (gain * scores + bias != -torch.inf)
    scores = torch.where(visible, scores, 0)
    logits = torch.where(visible, gain * scores + bias, -torch.inf)
    lse = torch.logsumexp(logits, dim=-1)
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    # Not exp(logits - lse): of large logits, the difference has lost the digits that matter.
    weights = torch.softmax(torch.where(visible.any(-1, keepdim=True), logits, 0), dim=-1)
    out = torch.where(visible, weights, 0) @ value
    return out + spoiling.unsqueeze(-1), lse + spoiling


def _gain_and_bias(
    call: AttentionCall, visibility: Visibility, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gain and bias of every pair, ``[1 or B, 1 or Hq, Lq, Lk]``."""
    distance = visibility.distance
    if call.tau is not None:
        tau = call.tau.double().reshape(1, -1, 1, 1)
        gain, bias = scale_invariant_gain_and_bias(
            distance.double().unsqueeze(1), tau, dimensions=visibility.dimensions
        )
    else:
        gain, bias = call.tables_at(distance)
    gain, bias = gain.to(dtype), bias.to(dtype)
    sink = visibility.sink
    if sink is not None:
        sink = sink.unsqueeze(1)
        gain, bias = torch.where(sink, 1, gain), torch.where(sink, 0, bias)
    return gain, bias


class _SpoilGradients(torch.autograd.Function):
    """The unchanged scores; in backward, NaN for every gradient that comes from a bad row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, bad: Tensor) -> Tensor:
        return scores.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (bad,) = ctx.saved_tensors
        return torch.where(bad & (grad != 0), torch.nan, grad), None
