"""The rotaries of a converted model's layers, which may differ.

A model computes the cosines and sines of its rotary once per call and passes them to all layers. If
layers differ, a :class:`LayeredRotary` takes its place, which computes those of all rotaries, and a
hook of each attention module picks those of its layer.
"""

import copy
from typing import Any

from torch import Tensor, nn

from .rotary import Parameters, rope_parameters
from .settings import KEY, Settings, read

# The attribute of an attention module that holds the number of its rotary, and that of its hook.
INDEX, HOOK = "position_rotary", "position_rotary_hook"


def layer_rotaries(settings: Settings, config: Any) -> list[Parameters]:
    """The `rope_parameters` of every layer of a model with this config, converted or not."""
    original = settings.original["rope_parameters"]
    kinds = layer_kinds(config)
    size, found = head_dim(config), []
    for layer in range(config.num_hidden_layers):
        own = original[kinds[layer]] if is_by_kind(original) else original
        converted = settings.converts(layer) and not settings.is_original
        found.append(rope_parameters(settings, own, size, layer) if converted else own)
    return found


def model_rotary(settings: Settings, config: Any) -> Parameters:
    """The `rope_parameters` of the whole model: by kind of layer if the model has them so.

    Of layers that differ otherwise, those of the first, as its :class:`LayeredRotary` has the others.
    """
    original, found = settings.original["rope_parameters"], layer_rotaries(settings, config)
    if not is_by_kind(original):
        return copy.deepcopy(found[0])
    by_kind: Parameters = copy.deepcopy(original)
    for kind in original:
        same = [it for it, each in zip(found, layer_kinds(config), strict=True) if each == kind]
        if any(it != same[0] for it in same):
            raise NotImplementedError(
                f"{config.model_type!r} has a rotary per kind of layer ({', '.join(original)}), and "
                f"scheme {settings.scheme_name!r} gives layers of one kind several: use "
                f"layers='global', or one scheme for all layers"
            )
        if same:
            by_kind[kind] = copy.deepcopy(same[0])
    return by_kind


def rotaries_of(settings: Settings | None, config: Any) -> list[Parameters]:
    """The different `rope_parameters` of a model's layers; empty if its own rotary can express them."""
    if settings is None or not settings.is_layered:
        return []
    if is_by_kind(settings.original["rope_parameters"]):
        return []
    found = layer_rotaries(settings, config)
    distinct = [it for index, it in enumerate(found) if it not in found[:index]]
    return distinct if len(distinct) > 1 else []


def layer_kinds(config: Any) -> list[str]:
    """The kind of every layer, such as "sliding_attention"."""
    kinds = getattr(config, "layer_types", None)
    return list(kinds) if kinds else ["full_attention"] * config.num_hidden_layers


def is_by_kind(parameters: Parameters) -> bool:
    """Whether `rope_parameters` are by kind of layer, as in Gemma 3."""
    return all(isinstance(part, dict) for part in parameters.values())


def head_dim(config: Any) -> int:
    """The size of heads, which must be the same in all layers."""
    try:
        given = getattr(config, "head_dim", None)
    except RuntimeError as error:
        raise NotImplementedError(
            f"{config.model_type!r} has heads of several sizes: convert a model with heads of one size"
        ) from error
    return int(given or config.hidden_size // config.num_attention_heads)


class LayeredRotary(nn.Module):
    """Rotary embeddings of the model's own class, one for each of several `rope_parameters`."""

    def __init__(self, own: nn.Module, config: Any, parameters: list[Parameters]) -> None:
        super().__init__()
        self.config = config
        self.rotaries = nn.ModuleList()
        for each in parameters:
            changed = copy.deepcopy(config)
            # Or it would be layered itself.
            changed.__dict__.pop(KEY)
            changed.rope_parameters = copy.deepcopy(each)
            self.rotaries.append(type(own)(changed))

    @property
    def own_class(self) -> type[nn.Module]:
        """The class of the model's rotary."""
        return type(self.rotaries[0])

    def forward(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Cosines and sines of every rotary."""
        return tuple(rotary(*arguments, **named) for rotary in self.rotaries)


def is_rotary(module: nn.Module) -> bool:
    """Whether a module is a rotary embedding, as transformers builds it."""
    return hasattr(module, "rope_type") and hasattr(module, "config")


def layered_when_built(parent: nn.Module, name: str, module: nn.Module | None) -> nn.Module | None:
    """A hook of torch, called as modules are assembled: replaces the rotary of layers that differ."""
    if module is None or not is_rotary(module):
        return None
    config: Any = module.config
    distinct = rotaries_of(read(config), config)
    return LayeredRotary(module, config, distinct) if distinct else None


def rebuild_rotaries(model: nn.Module) -> None:
    """Rebuild every rotary embedding from its config, on its device."""
    for parent in [it for it in model.modules() if not isinstance(it, LayeredRotary)]:
        for name, module in list(parent.named_children()):
            if isinstance(module, LayeredRotary) or (
                is_rotary(module) and not isinstance(parent, nn.ModuleList)
            ):
                own = module.own_class if isinstance(module, LayeredRotary) else type(module)
                device = next(module.buffers()).device
                # Assembled anew, which layers it if layers differ.
                setattr(parent, name, own(module.config))
                getattr(parent, name).to(device)


def set_rotary(module: Any) -> None:
    """Have an attention module pick the rotary of its layer, if layers differ."""
    hook = module.__dict__.pop(HOOK, None)
    if hook is not None:
        hook.remove()
    module.__dict__.pop(INDEX, None)
    settings = read(module.config)
    distinct = rotaries_of(settings, module.config)
    if settings is not None and distinct:
        layers = layer_rotaries(settings, module.config)
        setattr(module, INDEX, distinct.index(layers[module.layer_idx]))
        setattr(module, HOOK, module.register_forward_pre_hook(_pick_rotary, with_kwargs=True))


def _pick_rotary(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace the cosines and sines of all rotaries by those of the module's layer."""
    embeddings = named.get("position_embeddings")
    if not isinstance(embeddings, tuple) or isinstance(embeddings[0], Tensor):
        raise NotImplementedError(
            f"{type(module).__name__} is not given the rotary embeddings of its model as "
            "position_embeddings, so its layers must have one rotary: use one scheme for all layers"
        )
    return arguments, {**named, "position_embeddings": embeddings[getattr(module, INDEX)]}
