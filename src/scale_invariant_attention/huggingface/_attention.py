"""Schemes in the attention layers of transformers: the function they call, and what they hold.

Shapes: B batch, H heads, L queries, N keys, D head size.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import DistanceAffine
from ..attention.numerics import compute_dtype
from ..schemes import ScaleInvariant, Scheme, SchemeLayer
from ._visibility import TokenLayout, token_layout
from .settings import IMPLEMENTATION, SAVED_IMPLEMENTATION, Settings, name_implementation, read

# The attribute of an attention module that holds its scheme, and part of its parameters' names.
NAME = "position_scheme"
# That of a function to call with module, scheme, scaled queries, keys, layout and factor of q . k.
OBSERVER = "observe_scores"

# The fields in which configs have the dropout of attention weights.
DROPOUT_FIELDS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")

REFUSED = {
    "softcap": "a soft cap on scores (attn_logit_softcapping), which is no function of distance",
    "position_bias": "a bias per pair of positions",
    "indices": "keys chosen per query",
    "block_indices": "blocks of keys chosen per query",
    "head_mask": "a mask of heads",
    "cache": "a paged cache (continuous batching), whose keys have no positions",
    "block_table": "a paged cache (continuous batching), whose keys have no positions",
}


class LoadableLayer(SchemeLayer):
    """Query scale and distance of a scheme in one layer, as transformers loads them."""

    def __init__(self, scheme: Scheme, heads: int) -> None:
        super().__init__(scheme, heads)
        self._initialised = False
        self._tables: DistanceAffine | None = None

    @property
    def _is_hf_initialized(self) -> bool:
        return self._initialised

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, initialised: bool) -> None:
        """Called by transformers after loading; it cannot initialise our parameters itself."""
        if initialised and not any(parameter.is_meta for parameter in self.parameters()):
            if not self._initialised:
                reset_missing_parameters(self)
            self._initialised = True

    def tables(self, layout: TokenLayout, query: Tensor) -> DistanceAffine | None:
        """Gain and bias for all distances of a call; None if the op can compute them from tau.

        While a text grows token by token, tables without parameters are kept for the next call.
        """
        if self.tau(query.device) is not None:
            return None
        is_growing = query.shape[2] < layout.keys and not torch.compiler.is_compiling()
        if not is_growing or any(True for _ in self.parameters()):
            return self.affine(layout.span, query)
        known, like = self._tables, (compute_dtype(query.dtype), query.device)
        if (
            known is None
            or known.length < layout.span
            or (known.gain.dtype, known.gain.device) != like
        ):
            # Room for the next tokens. Tensors made for inference alone could not be used in training.
            with torch.inference_mode(False):
                self._tables = known = self.affine(layout.span + layout.span // 4 + 64, query)
        return known


def reset_missing_parameters(layer: SchemeLayer) -> None:
    """Initialise the parameters that transformers, which marks those that it loads, did not load."""
    layer.reset_parameters(
        name
        for name, value in layer.named_parameters()
        if not getattr(value, "_is_hf_initialized", False)
    )


def layer_for(settings: Settings, heads: int, layer: int) -> LoadableLayer:
    """The scheme of one layer."""
    return LoadableLayer(settings.layer_scheme(layer), heads)


def set_scheme(module: Any, settings: Settings) -> None:
    """Give an attention module the scheme of the settings, or remove the one it has."""
    if NAME in module._modules:
        delattr(module, NAME)
    if settings.uses_our_attention:
        layer = layer_for(settings, module.config.num_attention_heads, module.layer_idx)
        weight = next(module.parameters(), None)
        if weight is not None:
            # As if loaded: in the dtype of the model, unless that is quantised.
            layer = layer.to(weight.device, weight.dtype if weight.is_floating_point() else None)
        layer._is_hf_initialized = True
        setattr(module, NAME, layer)


def set_scheme_when_built(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """A hook of torch, called as modules are assembled: gives converted models their scheme."""
    if module is None or not is_attention(module):
        return
    config: Any = module.config
    settings = read(config)
    if settings is None or NAME in module._modules:
        return
    set_scheme(module, settings)
    name_implementation(config, settings)
    if config._attn_implementation == SAVED_IMPLEMENTATION:
        config._attn_implementation = IMPLEMENTATION
    implementation = config._attn_implementation or IMPLEMENTATION
    if settings.uses_our_attention and IMPLEMENTATION not in implementation:
        # The same message from every layer, which Python shows once.
        warnings.warn(
            f"attn_implementation={implementation!r} ignores the scheme {settings.scheme_name!r} of "
            f"this converted model: load it without the argument, or with {IMPLEMENTATION!r}",
            stacklevel=2,
        )


def is_attention(module: nn.Module) -> bool:
    """Whether a module is the attention of one layer, as transformers builds it."""
    is_named = "Attention" in type(module).__name__
    return is_named and hasattr(module, "layer_idx") and hasattr(module, "config")


# For models that only switched their implementation: the transform with the paper's tau in all heads.
DEFAULT_LAYER = LoadableLayer(Scheme(distance=ScaleInvariant()), heads=1)


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
    layout = layout.within(layer.scheme.window)
    if module.training and torch.is_grad_enabled():
        _warn_if_frozen(layer)
    query = layer.scale_queries(query, layout.positions)
    observe = getattr(module, OBSERVER, None)
    if observe is not None:
        observe(module, layer, query, key, layout, scaling)
    out = layer.attend(
        query,
        key,
        value,
        layout.visibility,
        affine=layer.tables(layout, query),
        scale=scaling,
        return_lse=s_aux is not None,
    )
    if s_aux is not None:
        # As if the softmax had one more logit per head, learned and without a value.
        attended, lse = out
        share = torch.sigmoid(lse - s_aux.to(lse.dtype).reshape(-1, 1))
        out = (attended * share.unsqueeze(-1)).to(attended.dtype)
    return out.transpose(1, 2).contiguous(), None


def _layer_of(module: nn.Module) -> LoadableLayer:
    layer: LoadableLayer | None = getattr(module, NAME, None)
    if layer is not None:
        return layer
    settings = read(getattr(module, "config", None))
    if settings is not None and settings.uses_our_attention:
        raise ValueError(
            f"the config says that this model was converted to {settings.scheme_name!r}, but it was "
            "not: call convert(model, ...), or build it from its config with from_config"
        )
    return DEFAULT_LAYER


def _warn_if_frozen(layer: nn.Module) -> None:
    """Warn about learned parameters of a scheme that do not learn."""
    parameters = dict(layer.named_parameters())
    # A layer that PEFT trains has a frozen copy of its parameters too.
    if parameters and not any(value.requires_grad for value in parameters.values()):
        name = next(iter(parameters)).rpartition(".")[2]
        warnings.warn(
            f"{name} of this scheme is learned, but frozen, as PEFT freezes all "
            f"that it does not adapt: pass modules_to_save=[{NAME!r}] to LoraConfig, or convert to a "
            "scheme without learned parameters",
            stacklevel=2,
        )


def dropout_reason(config: Any) -> str | None:
    """The reason why a model with dropout of attention weights cannot be trained, with the fix.

    >>> from transformers import LlamaConfig
    >>> dropout_reason(LlamaConfig())
    >>> dropout_reason(LlamaConfig(attention_dropout=0.1))
    "scale_invariant attention has no dropout, and ... attention_dropout 0.1: set it to 0.0 there"
    """
    for name in DROPOUT_FIELDS:
        rate = getattr(config, name, None)
        if isinstance(rate, int | float) and rate:
            return (
                "scale_invariant attention has no dropout, and the model's config.json has "
                f"{name} {rate}: set it to 0.0 there"
            )
    return None


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
        reason = dropout_reason(getattr(module, "config", None))
        raise NotImplementedError(
            reason or f"scale_invariant attention has no dropout, got dropout={dropout}: pass 0.0"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal:
        raise NotImplementedError(
            f"scale_invariant attention is causal, and {type(module).__name__} is not (an encoder, or "
            "cross-attention): use another attn_implementation for it"
        )
