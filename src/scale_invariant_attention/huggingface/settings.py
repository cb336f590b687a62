"""A scheme as the config of a converted model holds it.

The settings are a dictionary, so ``save_pretrained`` and ``from_pretrained`` keep them:

    "attn_implementation": "scale_invariant_attention.huggingface",
    "scale_invariant_attention": {
        "scheme": ..., "options": ..., "calibration": ..., "rotary": ..., "original": ..., "layers": ...
    }
"""

import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import NoneType
from typing import Any

from .. import schemes
from ..arguments import integer, real_number, shown
from ..schemes import NTK, ModelScheme, RoPE, ScaleInvariant, Scheme, YaRN, YaRNTemperature
from .rotary import OWN, ROTARIES

IMPLEMENTATION = "scale_invariant"
# The same, as saved configs have it: where it is unknown, transformers' error names what to import.
SAVED_IMPLEMENTATION = "scale_invariant_attention.huggingface"
KEY = "scale_invariant_attention"
# Joins the names of a pattern of schemes.
COMMA = ","
# The types of its parts, and their names in errors.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "scheme": ((str,), "the name of a scheme"),
    "options": ((dict,), "a dictionary"),
    "calibration": ((dict, NoneType), "a dictionary or none"),
    "rotary": ((str, dict, NoneType), "a name, a dictionary or none"),
    "original": ((dict,), "a dictionary"),
    "layers": ((list, NoneType), "a list of layers or none"),
}


@dataclass(frozen=True)
class Settings:
    """A scheme name and its options, calibration and rotary if there are any, and the original config.

    `calibration` has the spread and perhaps the mean of the scores of every layer and head. `rotary` is
    a name in :data:`ROTARIES`, or the `rope_parameters` themselves. `layers` are the indices of those
    that are converted, None for all.

    >>> Settings("scale-invariant-p-rope", {"tau": 5.0}).scheme.distance
    ScaleInvariant(tau=5.0, highest_tau=None, learn_tau=False, without=None,
        sigma=1.0, mu=0.0, learn_sigma=False)
    """

    scheme_name: str
    options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, list[list[float]]] | None = None
    rotary: str | dict[str, Any] | None = None
    original: dict[str, Any] = field(default_factory=dict)
    layers: list[int] | None = None

    @cached_property
    def scheme(self) -> ModelScheme:
        """The scheme itself; `factor` and, with a rotary, `train_length` are no options of it."""
        known = schemes.options(self.scheme_name)
        options = {name: value for name, value in self.options.items() if name in known}
        scheme = schemes.get(self.scheme_name, **options)
        if scheme.has_memory:
            raise NotImplementedError(
                f"scheme {self.scheme_name!r} has a memory, which models of transformers cannot keep: "
                f"train our GPT with it, sia train --scheme {self.scheme_name}"
            )
        return scheme

    def converts(self, layer: int) -> bool:
        """Whether a layer has the scheme; otherwise it is as in the original model."""
        return self.layers is None or layer in self.layers

    def layer_scheme(self, layer: int) -> Scheme:
        """What our attention applies in a layer, with the measured sigma and mu of its scores."""
        if not self.converts(layer):
            return Scheme()
        scheme = _without_rotary(self.scheme.of_layer(layer))
        distance = scheme.distance
        if self.calibration is None or not isinstance(distance, ScaleInvariant):
            return scheme
        sigma, means = self.calibration["spread"][layer], self.calibration.get("mean")
        mu = distance.mu if means is None else means[layer]
        return replace(scheme, distance=replace(distance, sigma=sigma, mu=mu))

    @property
    def is_layered(self) -> bool:
        """Whether layers differ."""
        return self.layers is not None or len(self.scheme.pattern) > 1

    @property
    def uses_our_attention(self) -> bool:
        """Whether the scheme changes more than the rotary, or the rotary of some layers alone."""
        changes = any(_without_rotary(scheme).changes_logits for scheme in self.scheme.pattern)
        return changes or (self.is_layered and not self._keeps_all_rotaries)

    @property
    def train_length(self) -> int:
        """The training length given, or that of the original model."""
        given = self.options.get("train_length") or self.scheme.train_length
        return int(given or self.original["max_position_embeddings"])

    def sets_base(self, layer: int) -> bool:
        """Whether the base of a layer's rotary is the scheme's own; otherwise it keeps the model's."""
        base = getattr(self.scheme.of_layer(layer).rotary, "base", None)
        is_hybrid = COMMA not in self.scheme_name and len(self.scheme.pattern) > 1
        option = "local_base" if is_hybrid else "base"
        return self._gives(option, layer) or base != RoPE().base

    def _gives(self, option: str, layer: int) -> bool:
        """Whether the options include this one of a layer's scheme."""
        names = self.scheme_name.split(COMMA)
        return bool({option, f"{names[layer % len(names)]}.{option}"} & self.options.keys())

    @property
    def is_original(self) -> bool:
        """Whether these are the settings of a model that was never converted."""
        return self._keeps_all_rotaries and not self.uses_our_attention

    @property
    def _keeps_all_rotaries(self) -> bool:
        return all(self._keeps_rotary(layer) for layer in range(len(self.scheme.pattern)))

    def _keeps_rotary(self, layer: int) -> bool:
        """Whether the model's own rotary stays as it is."""
        is_own = self.rotary in (None, OWN)
        return (
            is_own
            and type(self.scheme.of_layer(layer).rotary) is RoPE
            and not self.sets_base(layer)
        )

    @property
    def works_untrained(self) -> bool:
        """Whether the model can be used before it is fine-tuned."""
        return all(self._works_untrained(layer) for layer in range(len(self.scheme.pattern)))

    def _works_untrained(self, layer: int) -> bool:
        scheme = self.scheme.of_layer(layer)
        extended = self._keeps_rotary(layer) or type(scheme.rotary) in (NTK, YaRN)
        if isinstance(self.rotary, str):
            extended = ROTARIES[self.rotary].works_untrained
        knows_spread = self.calibration is not None or self._gives("sigma", layer)
        known = knows_spread or not _without_rotary(scheme).changes_logits
        return extended and known and scheme.window is None

    def to_dict(self) -> dict[str, Any]:
        """The settings as a config holds them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"scheme": values.pop("scheme_name"), **values}


def _without_rotary(scheme: Scheme) -> Scheme:
    """What our attention applies; transformers applies the rotary."""
    # transformers' YaRN rotary includes the temperature.
    included = type(scheme.rotary) is YaRN and type(scheme.query_scale) is YaRNTemperature
    query_scale = None if included else scheme.query_scale
    return Scheme(None, query_scale, scheme.distance, scheme.window, scheme.key_bias)


def read(config: Any) -> Settings | None:
    """The settings in a config; None if its model was not converted."""
    held = getattr(config, KEY, None)
    if held is None:
        return None
    if not isinstance(held, dict) or "scheme" not in held or not held.keys() <= _KINDS.keys():
        raise ValueError(
            f"config.{KEY} must be what convert() writes, a dictionary of {list(_KINDS)}, got "
            f"{shown(held)}"
        )
    for name, value in held.items():
        kinds, what = _KINDS[name]
        if not isinstance(value, kinds):
            raise ValueError(f"config.{KEY}.{name} must be {what}, got {shown(value)}")
    values = copy.deepcopy(held)
    _check_calibration(values.get("calibration"))
    for layer in values.get("layers") or ():
        integer(f"config.{KEY}.layers", layer, at_least=0)
    return Settings(values.pop("scheme"), **values)


def _check_calibration(calibration: dict[str, Any] | None) -> None:
    for name, layers in (calibration or {}).items():
        where = f"config.{KEY}.calibration.{name}"
        if not isinstance(layers, list) or not all(isinstance(it, list) for it in layers):
            raise ValueError(f"{where} must be a list of lists, got {shown(layers)}")
        for layer, heads in enumerate(layers):
            for head, value in enumerate(heads):
                real_number(f"{where}[{layer}][{head}]", value)


def write(config: Any, settings: Settings) -> None:
    """Put settings into a config, or remove them if they are those of the original."""
    config.__dict__.pop(KEY, None)
    if not settings.is_original:
        held = {name: value for name, value in settings.to_dict().items() if value is not None}
        setattr(config, KEY, copy.deepcopy(held))
    name_implementation(config, settings)


def name_implementation(config: Any, settings: Settings) -> None:
    """Have the config save its attention implementation, which transformers otherwise leaves out."""
    if settings.uses_our_attention:
        config.attn_implementation = SAVED_IMPLEMENTATION
    else:
        config.__dict__.pop("attn_implementation", None)
