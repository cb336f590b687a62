"""Changes the position scheme of a model in place, and back."""

import copy
import json
from typing import Any

from torch import nn

from .. import schemes
from ..arguments import did_you_mean, positive_number
from . import settings as held
from .calibration import Calibration
from .rope_parameters import rope_parameters
from .settings import IMPLEMENTATION, Settings
from .slots import fill, is_attention, slots_for

ORIGINAL = ("rope_parameters", "max_position_embeddings")
# Its layers make masks of their own, which are not those of positions.
OWN_MASKS = ("doge",)
# Their attention layers fix how many dimensions turn when they are built.
FIXED_ROTARY_WIDTH = ("phi", "stablelm", "persimmon")


def convert(
    model: Any,
    scheme: str = "scale-invariant-p-rope",
    *,
    calibration: Calibration | None = None,
    **options: Any,
) -> Any:
    """Give a transformers model another position scheme, in place, and return it.

    Rotary and attention are replaced and the weights stay, so a converted model is to be trained on. The
    scheme is written into the config: ``save_pretrained`` and ``from_pretrained`` keep it. Converting
    again starts from the original, and ``convert(model, "rope")`` restores it. The model gets a config
    of its own, so that others built from the same one stay as they are.

    Args:
        model: a causal language model with rotary positions, whose attention goes through
            transformers' registry.
        scheme: one of ``scale_invariant_attention.schemes.names()``.
        calibration: means and spreads of the scores, see :func:`measure_scores`.
        options: of the scheme, see docs/schemes.md. `tau` may be a list with one value a head.
            `train_length` is by default ``config.max_position_embeddings``; "yarn" needs `factor`,
            the number of trained lengths that it is to reach.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> _ = convert(model, "scale-invariant-p-rope", tau=10.0)
    >>> model.config.rope_parameters["partial_rotary_factor"]
    0.5
    >>> convert(model, "rope").config.rope_parameters
    {'rope_theta': 10000.0, 'rope_type': 'default'}
    """
    config = _checked_config(model)
    before = held.read(config)
    original = before.original if before is not None else _snapshot(config)
    options = _checked_options(scheme, options, config, original)
    settings = Settings(scheme, options, _checked_calibration(calibration, config), original)
    attention = [module for module in model.modules() if is_attention(module)]
    if settings.uses_our_attention:
        _check_attention(model, attention, config)
        slots_for(settings, config.num_attention_heads, 0)
    elif calibration is not None:
        raise ValueError(
            f"calibration must be None for scheme {scheme!r}, whose logits are the scores themselves"
        )

    train_length = options.get("train_length", original["max_position_embeddings"])
    back = scheme == "rope" and not options
    parameters = copy.deepcopy(original["rope_parameters"])
    if not back:
        parameters = rope_parameters(scheme, options, parameters, _head_dim(config), train_length)
        _check_rotary(scheme, config, parameters)
    config = _own_config(model)
    config.rope_parameters = parameters
    held.write(config, None if back else settings)
    # transformers' NTK takes the trained length from here.
    stretched = "ntk" in scheme
    config.max_position_embeddings = (
        train_length if stretched else original["max_position_embeddings"]
    )
    _rebuild_rotaries(model)
    for module in attention:
        fill(module, settings)
    ours = settings.uses_our_attention
    model.set_attn_implementation(IMPLEMENTATION if ours else original["attn_implementation"])
    return model


def _checked_config(model: Any) -> Any:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a model of transformers, got {type(model).__name__}; a model that PEFT has "
            "wrapped is converted before it is wrapped"
        )
    config = model.config
    if config.is_encoder_decoder:
        raise NotImplementedError(
            f"{type(model).__name__} has an encoder and cross-attention, and the schemes are for causal "
            "attention: convert a decoder-only model"
        )
    if config.get_text_config() is not config:
        raise NotImplementedError(
            f"{type(model).__name__} is a model of several: open its language model by a class of its "
            "own (such as Gemma3ForCausalLM), and convert that"
        )
    if model.base_model is model:
        raise NotImplementedError(
            f"{type(model).__name__} may be a part of another model, whose config would not be "
            "changed: convert the whole one (such as LlamaForCausalLM), and its parts change too"
        )
    if not getattr(config, "rope_parameters", None):
        raise NotImplementedError(
            f"{type(model).__name__} has no rotary positions to replace (config.rope_parameters): for "
            f"the transform on top of its own positions, model.set_attn_implementation("
            f"{IMPLEMENTATION!r})"
        )
    return config


def _own_config(model: Any) -> Any:
    """A copy of the config, held by the model and all of its parts in place of the one they had."""
    shared = model.config
    own = copy.deepcopy(shared)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = own
    return own


def _snapshot(config: Any) -> dict[str, Any]:
    original = {name: copy.deepcopy(getattr(config, name)) for name in ORIGINAL}
    name = config._attn_implementation
    return {**original, "attn_implementation": "sdpa" if name == IMPLEMENTATION else name}


def _checked_options(
    scheme: str, options: dict[str, Any], config: Any, original: dict[str, Any]
) -> dict[str, Any]:
    """The options that were given, and the trained length where the scheme asks for one."""
    known = set(schemes.options(scheme)) - {"counts"}
    needs_length = "train_length" in known
    known |= {"factor"} if scheme == "yarn" else set()
    for option in options:
        if option not in known:
            raise TypeError(
                f"scheme {scheme!r} has no option {option!r}{did_you_mean(option, known)}; its options "
                f"are: {', '.join(sorted(known)) or 'none'}"
            )
    if scheme == "yarn" and "factor" not in options:
        raise TypeError(
            "factor is missing: transformers' YaRN has one that does not change with the text; pass "
            "factor=..., the number of trained lengths that the model is to reach"
        )
    if "factor" in options and positive_number("factor", options["factor"]) < 1:
        raise ValueError(
            f"factor must be at least 1, the number of trained lengths to reach, got "
            f"{options['factor']:g}"
        )
    tau = options.get("tau")
    if isinstance(tau, list | tuple):
        options = {**options, "tau": _by_head(tau, config.num_attention_heads)}
        if options.get("learn_tau"):
            raise ValueError("tau must be one number with learn_tau=True, where every head starts")
    if needs_length:
        options = {"train_length": original["max_position_embeddings"], **options}
    try:
        json.dumps(options)
    except TypeError:
        raise TypeError(
            f"options must be plain numbers, as a config holds them, got {options}"
        ) from None
    given = {name: options[name] for name in options if name in schemes.options(scheme)}
    if isinstance(given.get("tau"), list):
        del given["tau"]
    schemes.get(scheme, **given)
    return options


def _by_head(tau: Any, heads: int) -> list[float]:
    if len(tau) != heads:
        raise ValueError(f"tau must be one number or one a head, {heads}, got {len(tau)}")
    return [positive_number("tau", value) for value in tau]


def _checked_calibration(
    calibration: Calibration | None, config: Any
) -> dict[str, list[list[float]]] | None:
    if calibration is None:
        return None
    if not isinstance(calibration, Calibration):
        raise TypeError(
            f"calibration must be a Calibration, as measure_scores gives it, got "
            f"{type(calibration).__name__}"
        )
    shape = (config.num_hidden_layers, config.num_attention_heads)
    if calibration.shape != shape:
        raise ValueError(
            f"calibration must be of a model with {shape[0]} layers and {shape[1]} heads, "
            f"got {calibration.shape[0]} and {calibration.shape[1]}"
        )
    return calibration.as_lists()


def _check_attention(model: Any, attention: list[nn.Module], config: Any) -> None:
    if not attention or not model._can_set_attn_implementation():
        raise NotImplementedError(
            f"the attention of {type(model).__name__} does not go through transformers' registry of "
            "attention functions, so it cannot be replaced"
        )
    if config.model_type in OWN_MASKS:
        raise NotImplementedError(
            f"the layers of {type(model).__name__} choose keys by masks of their own, and the schemes "
            "are for causal attention: convert another model"
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise NotImplementedError(
            f"{type(model).__name__} has a soft cap on scores (config.attn_logit_softcapping = "
            f"{config.attn_logit_softcapping}), which scale_invariant attention does not have: build "
            "the model from a config with attn_logit_softcapping = None, and train it on"
        )


def _check_rotary(scheme: str, config: Any, parameters: dict[str, Any]) -> None:
    """Refuse a rotary that the model cannot turn by, or with which it could be saved and not loaded."""
    kept = "take a scheme that keeps the model's own rotary, such as 'scale-invariant-rope'"
    if config.model_type in FIXED_ROTARY_WIDTH and parameters.get("rope_type") == "proportional":
        raise NotImplementedError(
            f"scheme {scheme!r} has a rotary over whole heads, and the attention of "
            f"{config.model_type!r} turns a fixed part of them: {kept}"
        )
    changed = copy.deepcopy(config)
    changed.rope_parameters = copy.deepcopy(parameters)
    try:
        changed.validate_rope()
    except (KeyError, ValueError) as error:
        raise NotImplementedError(
            f"the config of {config.model_type!r} does not take the rotary of scheme {scheme!r} "
            f"({error}): {kept}"
        ) from error


def _head_dim(config: Any) -> int:
    try:
        given = getattr(config, "head_dim", None)
    except RuntimeError as error:
        raise NotImplementedError(
            f"the layers of {config.model_type!r} have heads of several sizes, and a rotary is written "
            "for one: convert a model whose heads are all alike"
        ) from error
    return int(given or config.hidden_size // config.num_attention_heads)


def _rebuild_rotaries(model: nn.Module) -> None:
    """Have every rotary embedding made anew from its config, on its device."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if hasattr(module, "rope_type") and hasattr(module, "config"):
                device = next(module.buffers()).device
                setattr(parent, name, type(module)(module.config).to(device))
