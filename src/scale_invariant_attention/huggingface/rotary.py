"""The rotary of a converted model, in transformers' own format, `rope_parameters`.

p-RoPE is "proportional" with a ``partial_rotary_factor``, NoPE the same with the factor 0, NTK "dynamic"
with the factor 1, and YaRN "yarn" with a fixed factor. "longrope" has a divisor for each frequency, in
texts up to the training length and beyond it: it expresses everything else.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import did_you_mean
from ..schemes import NTK, ProportionalRoPE, RoPE, TruncatedRoPE, YaRN, YaRNTemperature

if TYPE_CHECKING:
    from .settings import Settings

Parameters = dict[str, Any]


def rope_parameters(
    settings: "Settings", original: Parameters, head_dim: int, layer: int = 0
) -> Parameters:
    """The `rope_parameters` of a converted layer, whose own are `original`.

    >>> from scale_invariant_attention.huggingface.settings import Settings
    >>> plain = {"rope_type": "default", "rope_theta": 1e4}
    >>> settings = Settings("p-rope", original={"max_position_embeddings": 4096})
    >>> rope_parameters(settings, plain, head_dim=128)
    {'rope_type': 'proportional', 'rope_theta': 1639882.8..., 'partial_rotary_factor': 0.5}
    """
    train_length, scheme = settings.train_length, settings.scheme.of_layer(layer)
    if settings.rotary is not None:
        return _replaced(settings.rotary, original, head_dim, train_length, settings.options)
    rotary = scheme.rotary
    # Exact types: a subclass may compute other frequencies.
    if type(rotary) not in (type(None), RoPE, TruncatedRoPE, ProportionalRoPE, NTK, YaRN):
        raise NotImplementedError(
            f"scheme {settings.scheme_name!r} has the rotary {rotary!r}, which transformers cannot "
            "express: it must be None, RoPE, TruncatedRoPE, ProportionalRoPE, NTK or YaRN"
        )
    if rotary is None:
        return _proportional(original.get("rope_theta", 10_000.0), 0.0)
    if isinstance(rotary, TruncatedRoPE):
        return _truncated(rotary, head_dim)
    if isinstance(rotary, ProportionalRoPE):
        # Raises if the fraction does not suit the head size.
        rotary.frequencies(head_dim, 1)
        return _proportional(rotary.base, rotary.fraction)
    assert isinstance(rotary, RoPE | NTK | YaRN)
    parameters = copy.deepcopy(original)
    if settings.sets_base(layer):
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
    if not isinstance(scheme.query_scale, YaRNTemperature):
        parameters["attention_factor"] = 1.0
    return parameters


class Rotated(NamedTuple):
    """The rotary of a model as it was trained, and the factor by which its context is to grow."""

    head_dim: int
    dimensions: int  # of each head that rotate
    theta: float
    train_length: int
    factor: float

    @property
    def frequencies(self) -> list[float]:
        """Radians per token of each pair of dimensions."""
        return RoPE(self.theta).frequencies(self.dimensions, self.train_length).tolist()


def _linear(given: Rotated) -> Parameters:
    return {"rope_type": "linear", "factor": given.factor}


def _ntk(given: Rotated) -> Parameters:
    power = given.dimensions / max(given.dimensions - 2, 1)
    return {"rope_type": "default", "rope_theta": given.theta * given.factor**power}


def _dynamic(given: Rotated) -> Parameters:
    return {"rope_type": "dynamic", "factor": 1.0}


def _yarn(given: Rotated) -> Parameters:
    return {
        "rope_type": "yarn",
        "factor": given.factor,
        "original_max_position_embeddings": given.train_length,
    }


def _yarn_beyond(given: Rotated) -> Parameters:
    divisors = _divisors(given, YaRN(given.train_length, given.theta))
    return _divided(given, [1.0] * len(divisors), divisors)


def _slow(given: Rotated) -> Parameters:
    divisors = _divisors(given, YaRN(given.train_length, given.theta, *SLOW))
    return _divided(given, divisors, divisors)


def _slow_beyond(given: Rotated) -> Parameters:
    divisors = _divisors(given, YaRN(given.train_length, given.theta, *SLOW))
    return _divided(given, [1.0] * len(divisors), divisors)


def _divisors(given: Rotated, yarn: YaRN) -> list[float]:
    """Divisor of each frequency in texts of the longest length."""
    length = round(given.factor * given.train_length)
    slowed = yarn.frequencies(given.dimensions, length).tolist()
    return [own / slow for own, slow in zip(given.frequencies, slowed, strict=True)]


def _llama3(given: Rotated) -> Parameters:
    return {
        "rope_type": "llama3",
        "factor": given.factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": given.train_length,
    }


def _fast_half(given: Rotated) -> Parameters:
    slowest = 2 * math.tau / given.train_length
    divisors = [1.0 if own > slowest else STILL for own in given.frequencies]
    return _divided(given, divisors, divisors)


def _p_rope(given: Rotated) -> Parameters:
    return _truncated(TruncatedRoPE(), given.head_dim)


def _divided(given: Rotated, short: list[float], long: list[float]) -> Parameters:
    """Own frequencies over divisors: `short` in texts up to the training length, `long` beyond it."""
    return {
        "rope_type": "longrope",
        "factor": given.factor,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": given.train_length,
        "attention_factor": 1.0,
    }


class NamedRotary(NamedTuple):
    """A rotary that can replace a model's own."""

    description: str
    parameters: Callable[[Rotated], Parameters] | None  # None keeps the model's own
    works_untrained: bool


OWN = "own"
# Turns within the training length: pairs with more keep their frequency, pairs with fewer are slowed.
SLOW = (2.0, 0.5)
# Divides a frequency so far that nothing turns within any text.
STILL = 1e30
ROTARIES: Mapping[str, NamedRotary] = {
    OWN: NamedRotary("the model's own, with its scaling", None, True),
    "ntk": NamedRotary("a larger base, at every length", _ntk, True),
    "dynamic": NamedRotary(
        "a base that grows with the text beyond the training length", _dynamic, True
    ),
    "yarn": NamedRotary("YaRN with a fixed factor", _yarn, True),
    "yarn-beyond": NamedRotary(
        "own up to the training length, and YaRN's frequencies beyond it", _yarn_beyond, True
    ),
    "slow": NamedRotary(
        "pairs that turn less than twice in the training length, divided by the factor", _slow, True
    ),
    "slow-beyond": NamedRotary(
        "own up to the training length, and the frequencies of slow beyond it", _slow_beyond, True
    ),
    "llama3": NamedRotary("low frequencies divided by the factor, as in Llama 3.1", _llama3, True),
    "p-rope": NamedRotary("half of the pairs, at frequencies from 1 to 1/1024", _p_rope, False),
    "linear": NamedRotary("all frequencies divided by the factor", _linear, False),
    "fast": NamedRotary(
        "own frequencies with periods below half the training length", _fast_half, False
    ),
}


def _replaced(
    rotary: str | Mapping[str, Any],
    original: Parameters,
    head_dim: int,
    train_length: int,
    options: Mapping[str, Any],
) -> Parameters:
    """The `rope_parameters` of a rotary that replaces a model's own; base and width stay."""
    kept = {
        name: it for name, it in original.items() if name in ("rope_theta", "partial_rotary_factor")
    }
    if not isinstance(rotary, str):
        return {**kept, **copy.deepcopy(dict(rotary))}
    width = int(head_dim * original.get("partial_rotary_factor", 1.0))
    theta, factor = original.get("rope_theta", 10_000.0), float(options.get("factor", 1.0))
    make = ROTARIES[rotary].parameters
    if make is None:
        return copy.deepcopy(original)
    return kept | make(Rotated(head_dim, width, theta, train_length, factor))


def is_dynamic(parameters: Parameters) -> bool:
    """Whether `rope_parameters` of one layer or of several make frequencies depend on the text."""
    parts = [part for part in parameters.values() if isinstance(part, dict)]
    return parameters.get("rope_type") == "dynamic" or any(map(is_dynamic, parts))


def checked_rotary(rotary: Any) -> str | dict[str, Any] | None:
    """A name in :data:`ROTARIES`, or `rope_parameters` with a `rope_type`; None if there is none."""
    if rotary is None or (isinstance(rotary, str) and rotary in ROTARIES):
        return rotary
    if isinstance(rotary, Mapping) and "rope_type" in rotary:
        return dict(rotary)
    raise ValueError(
        f"rotary must be one of {', '.join(ROTARIES)}, or rope_parameters of transformers with a "
        f"rope_type, got {rotary!r}{did_you_mean(rotary, ROTARIES)}"
    )


def check_names(rotaries: Sequence[str]) -> None:
    """Refuse anything but one or more names in :data:`ROTARIES`."""
    known = f"rotaries must be one or more of {', '.join(ROTARIES)}, got"
    if isinstance(rotaries, str) or not rotaries:
        raise ValueError(f"{known} {rotaries!r}")
    for name in rotaries:
        if name not in ROTARIES:
            raise ValueError(f"{known} {name!r}{did_you_mean(name, ROTARIES)}")


def _proportional(theta: float, fraction: float) -> Parameters:
    return {
        "rope_type": "proportional",
        "rope_theta": float(theta),
        "partial_rotary_factor": fraction,
    }


def _truncated(rotary: TruncatedRoPE, head_dim: int) -> Parameters:
    rotating = int(rotary.frequencies(head_dim, 1).count_nonzero())
    # A single pair rotates by 1, whatever the base.
    exponent = (head_dim / 2) / max(rotating - 1, 1)
    # transformers rounds the number of pairs down: in small heads, enough for the one that rotates.
    fraction = max(rotary.rotating, min(3 / head_dim, 1.0))
    return _proportional(rotary.base**exponent, fraction)
