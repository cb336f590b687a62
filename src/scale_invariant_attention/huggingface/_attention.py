"""The attention function that transformers calls in every layer.

Shapes: B batch, H heads, L queries, N keys, D head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..schemes import ScaleInvariant, Scheme
from ._layer import NAME, CalibratedLayer
from ._visibility import TokenLayout, token_layout
from .settings import read

# For models that only switched their implementation: the transform with the paper's tau in all heads.
DEFAULT_LAYER = CalibratedLayer(Scheme(distance=ScaleInvariant()), heads=1)
OBSERVER = "observe_scores"

# Called with a module, its scheme, scaled queries, keys, their layout and the factor of q . k.
Observer = Callable[[nn.Module, CalibratedLayer, Tensor, Tensor, TokenLayout, float | None], None]

REFUSED = {
    "softcap": "a soft cap on scores (attn_logit_softcapping), which is no function of distance",
    "position_bias": "a bias per pair of positions",
    "indices": "keys chosen per query",
    "block_indices": "blocks of keys chosen per query",
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
    _check_supported(module, dropout, is_causal, others)
    (batch, _, queries, _), keys = query.shape, key.shape[2]
    layout = token_layout(attention_mask, position_ids, batch, queries, keys, sliding_window)
    layout.check_boundaries(others.get("cu_seq_lens_q"))
    layer = _layer_of(module)
    query = layer.scale_queries(query, layout.positions)
    observe: Observer | None = getattr(module, OBSERVER, None)
    if observe is not None:
        observe(module, layer, query, key, layout, scaling)
    out = layer.attend(
        query,
        key,
        value,
        layout.visibility,
        affine=layer.shifted_affine(layout, query),
        scale=scaling,
        return_lse=s_aux is not None,
    )
    if s_aux is not None:
        # As if the softmax had one more logit per head, learned and without a value.
        attended, lse = out
        share = torch.sigmoid(lse - s_aux.to(lse.dtype).reshape(-1, 1))
        out = (attended * share.unsqueeze(-1)).to(attended.dtype)
    return out.transpose(1, 2).contiguous(), None


def _layer_of(module: nn.Module) -> CalibratedLayer:
    layer: CalibratedLayer | None = getattr(module, NAME, None)
    if layer is not None:
        return layer
    settings = read(getattr(module, "config", None))
    if settings is not None and settings.uses_our_attention:
        raise ValueError(
            f"the config says that this model was converted to {settings.scheme_name!r}, but it was "
            "not: call convert(model, ...), or build it from its config with from_config"
        )
    return DEFAULT_LAYER


def _check_supported(
    module: nn.Module, dropout: float, is_causal: bool | None, others: dict[str, Any]
) -> None:
    for name, description in REFUSED.items():
        if others.get(name) is not None:
            raise NotImplementedError(
                f"scale_invariant attention does not support {name}, {description}: set it to None in "
                "the config, or use another attn_implementation for this model"
            )
    if others.get("output_attentions"):
        raise NotImplementedError(
            "scale_invariant attention never stores its weights: pass output_attentions=False"
        )
    if dropout:
        raise NotImplementedError(
            f"scale_invariant attention has no dropout, got dropout={dropout}: set "
            "config.attention_dropout = 0.0 before the model is built"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal:
        raise NotImplementedError(
            f"scale_invariant attention is causal, and {type(module).__name__} is not (an encoder, or "
            "cross-attention): use another attn_implementation for it"
        )
