"""Changes the position scheme of a transformers model in place, and restores the original."""

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .. import schemes
from ..arguments import did_you_mean, integer, positive_number
from ..schemes import NTK, RoPE, ScaleInvariant, TruncatedRoPE, YaRN
from . import settings as held
from ._attention import dropout_reason, is_attention, layer_for, set_scheme
from ._layered_rotary import (
    layer_kinds,
    model_rotary,
    rebuild_rotaries,
    rotaries_of,
    set_rotary,
)
from ._scores import Calibration
from .rotary import OWN, Parameters, checked_rotary, is_dynamic
from .settings import IMPLEMENTATION, Settings

# Layers of these families build masks of their own, unrelated to positions.
OWN_MASKS = ("doge",)
# The models of these families do not pass position ids to their attention layers.
NO_POSITIONS = ("llama4", "llama4_text", "persimmon")
# Attention layers of these families fix the number of rotated dimensions when they are built.
FIXED_ROTARY_WIDTH = ("phi", "stablelm", "persimmon")


# The layers that see all tokens, of models that have others.
GLOBAL = "global"


class ConversionWarning(UserWarning):
    """Warns that a converted model needs more than its conversion."""


def convert(
    model: Any,
    scheme: str = "scale-invariant-p-rope",
    *,
    calibration: Calibration | None = None,
    rotary: str | Mapping[str, Any] | None = None,
    layers: str | Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Give a transformers model another position scheme, in place, and return it.

    Rotary and attention are replaced and the weights stay, so most converted models must be fine-tuned
    before use: a warning says so. Those that need not keep their rotary, or stretch it, and know the
    spread of their scores; :func:`extend` makes them. The scheme is written into the config:
    ``save_pretrained`` and ``from_pretrained`` keep it. Converting again starts from the original, and
    ``convert(model, "rope")`` restores it. The model gets its own copy of the config, so other models
    built from the same one do not change.

    Args:
        model: a causal language model with rotary positions, whose attention goes through
            transformers' registry.
        scheme: one of ``scale_invariant_attention.schemes.names()``, or several joined by commas, which
            repeat over the layers.
        calibration: spreads and perhaps means of the scores, for schemes with the transform: see
            :func:`measure_scores`.
        rotary: for schemes with RoPE, a rotary that replaces the model's own: a name, see
            docs/huggingface.md, or `rope_parameters` of transformers.
        layers: the layers to convert, by index; the others keep their rotary and window. "global" stands
            for those that see all tokens, in models that have others, such as Gemma 3. None is all.
        options: options of the scheme, see docs/schemes.md. `tau` may be a list with one value per
            head. `train_length` defaults to ``config.max_position_embeddings``; the scheme "yarn" and
            most rotaries need `factor`, the longest context as a multiple of the training length.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> _ = convert(model, "scale-invariant-p-rope", tau=10.0)
    >>> model.config.rope_parameters["partial_rotary_factor"]
    0.5
    >>> _ = convert(model, "scale-invariant-rope", rotary="yarn", factor=16)
    >>> model.config.rope_parameters["rope_type"], model.config.max_position_embeddings
    ('yarn', 32768)
    >>> convert(model, "rope").config.rope_parameters
    {'rope_theta': 10000.0, 'rope_type': 'default'}
    """
    config = _checked_config(model)
    before = held.read(config)
    original = before.original if before is not None else _snapshot(config)
    length = original["max_position_embeddings"]
    rotary = _checked_replacement(rotary, scheme)
    options = _checked_options(scheme, options, length, rotary)
    measured = _checked_calibration(calibration, config, scheme, options)
    chosen = _checked_layers(layers, scheme, config)
    settings = Settings(scheme, options, measured, rotary, original, chosen)
    _check_pattern(settings, config.num_hidden_layers)
    attention = [module for module in model.modules() if is_attention(module)]
    ours = settings.uses_our_attention
    if ours:
        _check_attention(model, attention, settings)
        for layer in range(config.num_hidden_layers):
            layer_for(settings, config.num_attention_heads, layer)

    parameters = copy.deepcopy(original["rope_parameters"])
    if not settings.is_original:
        parameters = model_rotary(settings, config)
        for each in rotaries_of(settings, config) or [parameters]:
            _check_rotary(scheme, config, each)
    # The model and its parts get their own copy of the config that they share.
    shared, config = config, copy.deepcopy(config)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = config
    config.rope_parameters = parameters
    held.write(config, settings)
    config.max_position_embeddings = _longest_context(settings, parameters, length)
    rebuild_rotaries(model)
    for module in attention:
        set_scheme(module, settings)
        set_rotary(module)
    model.set_attn_implementation(IMPLEMENTATION if ours else original["attn_implementation"])
    _warn(model, settings)
    return model


def _warn(model: Any, settings: Settings) -> None:
    """Say what a converted model still needs."""
    if not settings.works_untrained:
        rotary = "" if settings.rotary is None else f" and the rotary {settings.rotary!r}"
        warnings.warn(
            f"a model converted to {settings.scheme_name!r}{rotary} must be fine-tuned before use, see "
            "docs/fine-tuning.md: huggingface.extend converts models so that they can be used at once"
            f"{_advice_on_base(settings)}",
            ConversionWarning,
            stacklevel=3,
        )
    reason = dropout_reason(model.config)
    if reason and settings.uses_our_attention:
        warnings.warn(f"this model cannot be trained: {reason}", ConversionWarning, stacklevel=3)


def _advice_on_base(settings: Settings) -> str:
    """Another sentence, if the base of p-RoPE is large for the training length."""
    length = settings.original["max_position_embeddings"]
    rotaries = [each.rotary for each in settings.scheme.pattern]
    bases = [it.base for it in rotaries if isinstance(it, TruncatedRoPE)]
    if max(bases, default=0) <= length / 4:
        return ""
    return (
        f". Its base, {max(bases):g}, is above a quarter of the training length, {length}, so pairs "
        "meet new angles beyond it: see docs/choose-tau.md"
    )


def _longest_context(settings: Settings, parameters: Parameters, length: int) -> int:
    """``max_position_embeddings`` of the converted model."""
    train_length, pattern = settings.train_length, settings.scheme.pattern
    # transformers' NTK reads the training length from here.
    if any(isinstance(each.rotary, NTK) for each in pattern) or is_dynamic(parameters):
        return train_length if settings.rotary != OWN else length
    if settings.rotary is not None:
        return max(length, round(train_length * float(settings.options.get("factor", 1.0))))
    return length


def _checked_config(model: Any) -> Any:
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a transformers model, got {kind}: load it with from_pretrained, and "
            "convert it before wrapping it with PEFT"
        )
    config = model.config
    if config.model_type in NO_POSITIONS:
        raise NotImplementedError(
            f"{kind} does not pass position_ids to its attention layers, which distances come from: "
            "convert a model that does, such as Llama 3"
        )
    if config.is_encoder_decoder:
        raise NotImplementedError(
            f"{kind} has an encoder and cross-attention: convert a causal, decoder-only model"
        )
    if config.get_text_config() is not config:
        raise NotImplementedError(
            f"{kind} combines several models: convert its language model (such as Gemma3ForCausalLM)"
        )
    if model.base_model is model:
        raise NotImplementedError(
            f"{kind} may be part of another model, whose config would not change: convert the whole "
            "model (such as LlamaForCausalLM), and its parts change with it"
        )
    if not getattr(config, "rope_parameters", None):
        raise NotImplementedError(
            f"{kind} has no rotary positions to replace (config.rope_parameters): convert a model that "
            "has them, such as Llama"
        )
    return config


def _takes_our_attention(model: Any) -> bool:
    has_attention = any(is_attention(module) for module in model.modules())
    return has_attention and bool(model._can_set_attn_implementation())


def _checked_replacement(rotary: Any, scheme: str) -> str | dict[str, Any] | None:
    replacement = checked_rotary(rotary)
    if replacement is not None and not _has_rope(scheme):
        raise ValueError(
            f"rotary must be None for scheme {scheme!r}, which has its own, got {rotary!r}: use a "
            "scheme with RoPE, such as 'scale-invariant-rope'"
        )
    return replacement


def _check_pattern(settings: Settings, count: int) -> None:
    """Refuse a pattern that is longer than the number of layers."""
    schemes_in_pattern = len(settings.scheme.pattern)
    if schemes_in_pattern > count:
        raise ValueError(
            f"scheme {settings.scheme_name!r} is a pattern of {schemes_in_pattern} schemes, and the "
            f"model has {count} layers: use a shorter pattern"
        )


def _has_rope(scheme: str) -> bool:
    """Whether all layers have RoPE, and the same scheme."""
    pattern = schemes.get(scheme).pattern
    return len(pattern) == 1 and type(pattern[0].rotary) is RoPE


def _checked_layers(
    layers: str | Sequence[int] | None, scheme: str, config: Any
) -> list[int] | None:
    """The indices of the layers to convert; None if they are all of them."""
    count = config.num_hidden_layers
    if layers is None:
        return None
    if len(schemes.get(scheme).pattern) > 1:
        raise ValueError(
            f"layers must be None for scheme {scheme!r}, which has a scheme for every layer"
        )
    if layers == GLOBAL:
        kinds = layer_kinds(config)
        found = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
        if not 0 < len(found) < count:
            raise ValueError(
                f"layers must be indices of layers, got {layers!r}: those of {config.model_type!r} are "
                f"not some local and some global, but all {kinds[0]!r}"
            )
        return found
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
        raise ValueError(f"layers must be {GLOBAL!r}, or indices of layers, got {layers!r}")
    chosen = sorted({integer("layers", layer, at_least=0) for layer in layers})
    if chosen[-1] >= count:
        raise ValueError(f"layers must be below the model's {count}, got {chosen[-1]}")
    return chosen


def _snapshot(config: Any) -> dict[str, Any]:
    name = config._attn_implementation
    return {
        "rope_parameters": copy.deepcopy(config.rope_parameters),
        "max_position_embeddings": config.max_position_embeddings,
        "attn_implementation": "sdpa" if name == IMPLEMENTATION else name,
    }


def _checked_options(
    scheme: str, options: dict[str, Any], length: int, rotary: str | dict[str, Any] | None
) -> dict[str, Any]:
    """The given options, and the training length if the scheme or the rotary takes one."""
    known = set(schemes.options(scheme))
    takes_factor = any(isinstance(it.rotary, YaRN) for it in schemes.get(scheme).pattern)
    known |= {"factor"} if takes_factor or rotary is not None else set()
    known |= {"train_length"} if rotary is not None else set()
    if rotary is not None and "base" in options:
        raise TypeError("base cannot be combined with rotary, which keeps the model's own base")
    with_rotary = "; with rotary=..., factor and train_length too" if _has_rope(scheme) else ""
    for option in options:
        if option not in known:
            raise TypeError(
                f"scheme {scheme!r} has no option {option!r}{did_you_mean(option, known)}; its options "
                f"are: {', '.join(sorted(known)) or 'none'}{with_rotary}"
            )
    meaning = "the longest context as a multiple of the training length"
    needs_factor = takes_factor or (isinstance(rotary, str) and rotary not in (OWN, "dynamic"))
    if needs_factor and "factor" not in options:
        raise TypeError(f"factor is missing: pass factor=..., {meaning}")
    if "factor" in options and positive_number("factor", options["factor"]) < 1:
        raise ValueError(f"factor must be at least 1, {meaning}, got {options['factor']:g}")
    if "train_length" in known:
        options = {"train_length": length, **options}
        integer("train_length", options["train_length"], at_least=1)
    try:
        json.dumps(options)
    except TypeError:
        raise TypeError(f"options must be values that JSON can hold, got {options}") from None
    return options


def _checked_calibration(
    calibration: Calibration | None, config: Any, scheme: str, options: Mapping[str, Any]
) -> dict[str, list[list[float]]] | None:
    if calibration is None:
        return None
    pattern = schemes.get(scheme).pattern
    if not any(isinstance(each.distance, ScaleInvariant) for each in pattern):
        raise ValueError(
            f"calibration must be None for scheme {scheme!r}, which does not depend on the spread of "
            "scores: use a scheme with the transform, such as 'scale-invariant-rope'"
        )
    given = [name for name in ("sigma", "mu") if name in options]
    if given:
        raise TypeError(
            f"{given[0]} cannot be combined with calibration, which has it for each head"
        )
    if not isinstance(calibration, Calibration):
        raise TypeError(f"calibration must be a Calibration, got a {type(calibration).__name__}")
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if calibration.shape != (layers, heads):
        raise ValueError(
            f"calibration must be for {layers} layers and {heads} heads, got shape {calibration.shape}"
        )
    return calibration.as_lists()


def _check_attention(model: Any, attention: list[nn.Module], settings: Settings) -> None:
    kind, cap = type(model).__name__, getattr(model.config, "attn_logit_softcapping", None)
    if not _takes_our_attention(model):
        raise NotImplementedError(
            f"the attention of {kind} cannot be replaced: it does not go through transformers' registry"
        )
    if model.config.model_type in OWN_MASKS:
        raise NotImplementedError(
            f"the layers of {kind} choose keys with masks of their own: convert a causal model"
        )
    if cap is not None:
        raise NotImplementedError(
            f"{kind} has a soft cap on scores (config.attn_logit_softcapping = {cap}), which is "
            "unsupported: build it with attn_logit_softcapping = None, and fine-tune it"
        )
    schemes = [settings.layer_scheme(layer) for layer in range(model.config.num_hidden_layers)]
    gates = [each.key_bias for each in schemes if each.key_bias is not None]
    if gates:
        raise NotImplementedError(
            f"scheme {settings.scheme_name!r} has {gates[0]}, gates computed from the inputs of layers, "
            "which the attention function of transformers does not see: use a scheme without key_bias"
        )
    by_context = [each.query_scale for each in schemes if each.depends_on_context]
    if by_context:
        raise NotImplementedError(
            f"scheme {settings.scheme_name!r} scales queries by {by_context[0]!r}, which "
            "depends on the context length, unknown to attention layers of transformers: use a query "
            "scale that depends on positions alone, such as LogN(counts='query')"
        )


def _check_rotary(scheme: str, config: Any, parameters: Parameters) -> None:
    """Refuse a rotary that the model cannot apply, or with which it could be saved but not loaded."""
    kept = "use a scheme that keeps the model's own rotary, such as 'scale-invariant-rope'"
    if config.model_type in FIXED_ROTARY_WIDTH and parameters.get("rope_type") == "proportional":
        raise NotImplementedError(
            f"scheme {scheme!r} rotates whole heads, and {config.model_type!r} a fixed part: {kept}"
        )
    changed = copy.deepcopy(config)
    changed.rope_parameters = copy.deepcopy(parameters)
    try:
        changed.validate_rope()
    except (KeyError, ValueError) as error:
        raise NotImplementedError(
            f"the config of {config.model_type!r} does not accept the rotary of scheme {scheme!r} "
            f"({error}): {kept}"
        ) from error
