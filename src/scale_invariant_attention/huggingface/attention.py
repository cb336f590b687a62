"""The attention function that transformers calls in every layer.

Shapes: B batch, H heads, L queries, N keys, D head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import schemes
from .placing import Placing, placing
from .settings import read
from .slots import NAME, Slots

# Of models that only switched their implementation: the transform with the paper's tau in all heads.
DEFAULT_SLOTS = Slots(schemes.get("scale-invariant-nope"), heads=1)
OBSERVER = "observe_scores"

# Called with a layer, its slots, scaled queries, keys, their placing and the factor of q . k.
Observer = Callable[[nn.Module, Slots, Tensor, Tensor, Placing, float | None], None]

REFUSED = {
    "softcap": "a soft cap on scores (attn_logit_softcapping), which is no function of distance",
    "position_bias": "a bias for every pair of positions",
    "indices": "keys chosen for every query",
    "block_indices": "blocks of keys chosen for every query",
    "head_mask": "a mask of heads",
    "cache": "a paged cache (continuous batching), whose keys have no positions",
    "block_table": "a paged cache (continuous batching), whose keys have no positions",
}


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_ids: Tensor | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention ``[B, L, H, D]`` from ``[B, H, L, D]`` queries and ``[B, Hk, N, D]`` keys and values."""
    _refuse(module, dropout, is_causal, others)
    placed = placing(
        attention_mask,
        position_ids,
        batch=query.shape[0],
        queries=query.shape[2],
        keys=key.shape[2],
        window=sliding_window,
    )
    placed.check_boundaries(others.get("cu_seq_lens_q"))
    slots = _slots(module)
    query = slots.scaled(query, placed)
    observe: Observer | None = getattr(module, OBSERVER, None)
    if observe is not None:
        observe(module, slots, query, key, placed, scaling)
    if s_aux is None:
        out: Tensor = slots.attend(query, key, value, placed, scale=scaling)
    else:
        out, lse = slots.attend(query, key, value, placed, scale=scaling, return_lse=True)
        out = _with_sink(out, lse, s_aux)
    return out.transpose(1, 2).contiguous(), None


def _slots(module: nn.Module) -> Slots:
    slots: Slots | None = getattr(module, NAME, None)
    if slots is not None:
        return slots
    settings = read(getattr(module, "config", None))
    if settings is not None and settings.uses_our_attention:
        raise ValueError(
            f"the config says that this model was converted to {settings.scheme_name!r}, but it was "
            "not: convert it with convert(model, ...), or build it from its config with from_config"
        )
    return DEFAULT_SLOTS


def _with_sink(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """A learned logit for each head that takes its share of the softmax, and has no value."""
    share = torch.sigmoid(lse - sink.to(lse.dtype).reshape(-1, 1))
    return (out * share.unsqueeze(-1)).to(out.dtype)


def _refuse(
    module: nn.Module, dropout: float, is_causal: bool | None, others: dict[str, Any]
) -> None:
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise NotImplementedError(
                f"scale_invariant attention cannot take {name}, {what}: set it to None in the config, "
                "or take another attn_implementation for this model"
            )
    if others.get("output_attentions"):
        raise NotImplementedError(
            "scale_invariant attention never holds the attention weights: call the model with "
            "output_attentions=False"
        )
    if dropout:
        raise NotImplementedError(
            f"scale_invariant attention has no dropout on its weights, got dropout={dropout}: set "
            "config.attention_dropout = 0.0 before the model is built"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal:
        raise NotImplementedError(
            f"scale_invariant attention is causal, and {type(module).__name__} is not (an encoder, or "
            "cross-attention): take another attn_implementation for it"
        )
