"""A scheme as the config of a converted model holds it.

The settings are a dictionary, so ``save_pretrained`` and ``from_pretrained`` keep them:

    "attn_implementation": "scale_invariant_attention.huggingface",
    "scale_invariant_attention": {
        "scheme": ..., "options": ..., "calibration": ..., "rotary": ..., "original": ...
    }
"""

import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import NoneType
from typing import Any

from .. import schemes
from ..arguments import real_number, shown
from ..schemes import NTK, RoPE, ScaleInvariant, Scheme, YaRN, YaRNTemperature
from .rotary import OWN, ROTARIES

IMPLEMENTATION = "scale_invariant"
# The same, as saved configs have it: where it is unknown, transformers' error names what to import.
SAVED_IMPLEMENTATION = "scale_invariant_attention.huggingface"
KEY = "scale_invariant_attention"
# The types of its parts, and their names in errors.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "scheme": ((str,), "the name of a scheme"),
    "options": ((dict,), "a dictionary"),
    "calibration": ((dict, NoneType), "a dictionary or none"),
    "rotary": ((str, dict, NoneType), "a name, a dictionary or none"),
    "original": ((dict,), "a dictionary"),
}


@dataclass(frozen=True)
class Settings:
    """A scheme name and its options, calibration and rotary if there are any, and the original config.

    `calibration` has the spread and perhaps the mean of the scores of every layer and head. `rotary` is
    a name in :data:`ROTARIES`, or the `rope_parameters` themselves.

    >>> Settings("scale-invariant-p-rope", {"tau": 5.0}).scheme.distance
    ScaleInvariant(tau=5.0, highest_tau=None, learn_tau=False, without=None,
        sigma=1.0, mu=0.0, learn_sigma=False)
    """

    scheme_name: str
    options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, list[list[float]]] | None = None
    rotary: str | dict[str, Any] | None = None
    original: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def scheme(self) -> Scheme:
        """The scheme itself; `factor` and, with a rotary, `train_length` are no options of it."""
        known = schemes.options(self.scheme_name)
        options = {name: value for name, value in self.options.items() if name in known}
        scheme = schemes.get(self.scheme_name, **options)
        if scheme.memory is not None:
            raise NotImplementedError(
                f"scheme {self.scheme_name!r} has a memory, which models of transformers cannot keep: "
                f"train our GPT with it, sia train --scheme {self.scheme_name}"
            )
        return scheme

    @property
    def attention_scheme(self) -> Scheme:
        """The query scale and distance that our attention applies; transformers applies the rotary."""
        scheme = self.scheme
        # transformers' YaRN rotary includes the temperature.
        included = type(scheme.rotary) is YaRN and type(scheme.query_scale) is YaRNTemperature
        return Scheme(None, None if included else scheme.query_scale, scheme.distance)

    def layer_scheme(self, layer: int) -> Scheme:
        """The attention scheme of one layer, with the measured sigma and mu of its scores."""
        scheme = self.attention_scheme
        if self.calibration is None:
            return scheme
        assert isinstance(scheme.distance, ScaleInvariant)
        sigma, means = self.calibration["spread"][layer], self.calibration.get("mean")
        mu = scheme.distance.mu if means is None else means[layer]
        return replace(scheme, distance=replace(scheme.distance, sigma=sigma, mu=mu))

    @property
    def uses_our_attention(self) -> bool:
        """Whether the scheme changes more than the rotary."""
        return self.attention_scheme.changes_logits

    @property
    def sets_base(self) -> bool:
        """Whether the base of the rotary is the scheme's own; otherwise the model keeps its base."""
        return "base" in self.options or getattr(self.scheme.rotary, "base", None) != RoPE().base

    @property
    def is_original(self) -> bool:
        """Whether these are the settings of a model that was never converted."""
        return self.keeps_rotary and not self.uses_our_attention

    @property
    def keeps_rotary(self) -> bool:
        """Whether the model's own rotary stays as it is."""
        is_own = self.rotary in (None, OWN)
        return is_own and type(self.scheme.rotary) is RoPE and not self.sets_base

    @property
    def works_untrained(self) -> bool:
        """Whether the model can be used before it is fine-tuned."""
        rotary = self.scheme.rotary
        extended = self.keeps_rotary or type(rotary) in (NTK, YaRN)
        if isinstance(self.rotary, str):
            extended = ROTARIES[self.rotary].works_untrained
        knows_spread = self.calibration is not None or "sigma" in self.options
        return extended and (knows_spread or not self.uses_our_attention)

    def to_dict(self) -> dict[str, Any]:
        """The settings as a config holds them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"scheme": values.pop("scheme_name"), **values}


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
