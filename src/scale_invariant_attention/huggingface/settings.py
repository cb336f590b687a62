"""A scheme as the config of a converted model holds it: its settings, and its rotary.

The settings are a dictionary, so ``save_pretrained`` and ``from_pretrained`` keep them:

    "attn_implementation": "scale_invariant",
    "scale_invariant_attention": {"scheme": ..., "options": ..., "calibration": ..., "original": ...}

The rotary is written in transformers' own format, `rope_parameters`. p-RoPE is "proportional" with a
``partial_rotary_factor``, NoPE the same with the factor 0, NTK "dynamic" with the factor 1, and YaRN
"yarn" with a fixed factor.
"""

import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from .. import schemes
from ..schemes import NTK, ProportionalRoPE, RoPE, Scheme, TruncatedRoPE, YaRN, YaRNTemperature

IMPLEMENTATION = "scale_invariant"
KEY = "scale_invariant_attention"

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """A scheme name and its options, the calibration if there is one, and the original config.

    >>> Settings("scale-invariant-p-rope", {"tau": 5.0}).scheme.distance
    ScaleInvariant(tau=5.0, highest_tau=None, learn_tau=False, without=None,
        sigma=1.0, mu=0.0, learn_sigma=False)
    """

    scheme_name: str
    options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, list[list[float]]] | None = None
    original: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def scheme(self) -> Scheme:
        """The scheme itself; `factor` is an option of transformers' YaRN alone."""
        known = schemes.options(self.scheme_name)
        options = {name: value for name, value in self.options.items() if name in known}
        return schemes.get(self.scheme_name, **options)

    @property
    def attention_scheme(self) -> Scheme:
        """The query scale and distance that our attention applies; transformers applies the rotary."""
        scheme = self.scheme
        # transformers' YaRN rotary includes the temperature.
        included = type(scheme.rotary) is YaRN and type(scheme.query_scale) is YaRNTemperature
        return Scheme(None, None if included else scheme.query_scale, scheme.distance)

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
        keeps_rotary = type(self.scheme.rotary) is RoPE and not self.sets_base
        return keeps_rotary and not self.uses_our_attention

    def to_dict(self) -> dict[str, Any]:
        """The settings as a config holds them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"scheme": values.pop("scheme_name"), **values}


def read(config: Any) -> Settings | None:
    """The settings in a config; None if its model was not converted."""
    held = getattr(config, KEY, None)
    if held is None:
        return None
    known = ["scheme", "options", "calibration", "original"]
    if not isinstance(held, dict) or "scheme" not in held or not set(held) <= set(known):
        raise ValueError(
            f"config.{KEY} must be what convert() writes, a dictionary of {known}, got {held!r}"
        )
    values = copy.deepcopy(held)
    return Settings(values.pop("scheme"), **values)


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
        config.attn_implementation = IMPLEMENTATION
    else:
        config.__dict__.pop("attn_implementation", None)


def rope_parameters(
    settings: Settings, original: Parameters, head_dim: int, train_length: int
) -> Parameters:
    """The `rope_parameters` of a scheme, for a model whose own are `original`.

    >>> plain = {"rope_type": "default", "rope_theta": 1e4}
    >>> rope_parameters(Settings("p-rope"), plain, head_dim=128, train_length=4096)
    {'rope_type': 'proportional', 'rope_theta': 1639882.8..., 'partial_rotary_factor': 0.5}
    """
    if all(isinstance(part, dict) for part in original.values()):
        # Models with a rotary per type of layer, such as Gemma 3.
        return {
            kind: rope_parameters(settings, part, head_dim, train_length)
            for kind, part in original.items()
        }
    rotary = settings.scheme.rotary
    # Exact types: a subclass may compute other frequencies.
    if type(rotary) not in (type(None), RoPE, TruncatedRoPE, ProportionalRoPE, NTK, YaRN):
        raise NotImplementedError(
            f"scheme {settings.scheme_name!r} has the rotary {rotary!r}, which transformers cannot "
            "express: it must be None, RoPE, TruncatedRoPE, ProportionalRoPE, NTK or YaRN"
        )
    if rotary is None:
        return _proportional(original.get("rope_theta", 10_000.0), 0.0)
    if isinstance(rotary, TruncatedRoPE):
        rotating = int(rotary.frequencies(head_dim, 1).count_nonzero())
        # A single pair rotates by 1, whatever the base.
        exponent = (head_dim / 2) / max(rotating - 1, 1)
        return _proportional(rotary.base**exponent, 0.5)
    if isinstance(rotary, ProportionalRoPE):
        # Raises if the fraction does not suit the head size.
        rotary.frequencies(head_dim, 1)
        return _proportional(rotary.base, rotary.fraction)
    assert isinstance(rotary, RoPE | NTK | YaRN)
    parameters = copy.deepcopy(original)
    if settings.sets_base:
        parameters["rope_theta"] = float(rotary.base)
    if isinstance(rotary, RoPE):
        return parameters
    if original.get("rope_type", "default") != "default":
        raise ValueError(
            f"scheme {settings.scheme_name!r} changes plain RoPE, and this model has the rotary "
            f"{original['rope_type']!r}: use another scheme"
        )
    if isinstance(rotary, NTK):
        return parameters | {"rope_type": "dynamic", "factor": 1.0}
    parameters |= {
        "rope_type": "yarn",
        "factor": float(settings.options["factor"]),
        "original_max_position_embeddings": train_length,
        "beta_fast": float(rotary.fast_rotations),
        "beta_slow": float(rotary.slow_rotations),
    }
    if not isinstance(settings.scheme.query_scale, YaRNTemperature):
        parameters["attention_factor"] = 1.0
    return parameters


def _proportional(theta: float, fraction: float) -> Parameters:
    return {
        "rope_type": "proportional",
        "rope_theta": float(theta),
        "partial_rotary_factor": fraction,
    }
