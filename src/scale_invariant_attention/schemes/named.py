"""The schemes of the paper by name, each a filling of the three slots."""

import inspect
from collections.abc import Callable
from typing import Any

from ..arguments import did_you_mean
from .distance import ALiBi, ScaleInvariant
from .query_scale import LogN, YaRNTemperature
from .rotary import NTK, ProportionalRoPE, RoPE, Rotary, TruncatedRoPE, YaRN
from .scheme import Scheme


def names() -> tuple[str, ...]:
    """The names that `get` knows.

    >>> names()[0], len(names())
    ('rope', 12)
    """
    return tuple(SCHEMES)


def options(name: str) -> tuple[str, ...]:
    """What `get` can be told about a scheme besides its name.

    >>> options("scale-invariant-rope")
    ('base', 'tau', 'learn_tau')
    """
    return tuple(inspect.signature(_scheme(name)).parameters)


def get(name: str, **options: Any) -> Scheme:
    """The scheme of a name, with options for its slots.

    >>> get("scale-invariant-p-rope", tau=1.0)
    Scheme(rotary=TruncatedRoPE(base=1024.0), query_scale=None,
        distance=ScaleInvariant(tau=1.0, learn_tau=False))
    """
    make = _scheme(name)
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise TypeError(
                f"scheme {name!r} has no option {option!r}"
                f"{did_you_mean(option, known)}; its options are: {', '.join(known) or 'none'}"
            )
    return make(**options)


def _scheme(name: str) -> Callable[..., Scheme]:
    if not isinstance(name, str) or name not in SCHEMES:
        raise ValueError(
            f"there is no scheme {name!r}{did_you_mean(name, SCHEMES)}; "
            f"the schemes are: {', '.join(SCHEMES)}"
        )
    return SCHEMES[name]


def trained_as(name: str) -> str:
    """The scheme whose training is the same: NTK and YaRN change nothing up to the trained length.

    >>> trained_as("yarn"), trained_as("logn-ntk"), trained_as("alibi")
    ('rope', 'logn-rope', 'alibi')
    """
    return {"rope-ntk": "rope", "yarn": "rope", "logn-ntk": "logn-rope"}.get(name, name)


def _rope(base: float = 10_000.0) -> Scheme:
    return Scheme(RoPE(base))


def _p_rope(base: float | None = None, fraction: float | None = None) -> Scheme:
    return Scheme(_partial_rotary(base, fraction))


def _nope() -> Scheme:
    return Scheme()


def _rope_ntk(train_length: int | None = None, base: float = 10_000.0) -> Scheme:
    return Scheme(NTK(train_length, base))


def _yarn(
    train_length: int | None = None,
    base: float = 10_000.0,
    fast_rotations: float = 32.0,
    slow_rotations: float = 1.0,
) -> Scheme:
    rotary = YaRN(train_length, base, fast_rotations, slow_rotations)
    return Scheme(rotary, YaRNTemperature(train_length))


def _logn_rope(
    train_length: int | None = None, counts: str = "query", base: float = 10_000.0
) -> Scheme:
    return Scheme(RoPE(base), LogN(train_length, counts))


def _logn_p_rope(
    train_length: int | None = None,
    counts: str = "query",
    base: float | None = None,
    fraction: float | None = None,
) -> Scheme:
    return Scheme(_partial_rotary(base, fraction), LogN(train_length, counts))


def _logn_ntk(
    train_length: int | None = None, counts: str = "query", base: float = 10_000.0
) -> Scheme:
    return Scheme(NTK(train_length, base), LogN(train_length, counts))


def _alibi() -> Scheme:
    return Scheme(distance=ALiBi())


def _scale_invariant_p_rope(
    base: float | None = None,
    fraction: float | None = None,
    tau: float = 10.0,
    learn_tau: bool = False,
) -> Scheme:
    return Scheme(_partial_rotary(base, fraction), distance=ScaleInvariant(tau, learn_tau))


def _scale_invariant_rope(
    base: float = 10_000.0, tau: float = 10.0, learn_tau: bool = False
) -> Scheme:
    return Scheme(RoPE(base), distance=ScaleInvariant(tau, learn_tau))


def _scale_invariant_nope(tau: float = 10.0, learn_tau: bool = False) -> Scheme:
    return Scheme(distance=ScaleInvariant(tau, learn_tau))


def _partial_rotary(base: float | None, fraction: float | None) -> Rotary:
    """p-RoPE: the paper's half of the pairs, or a `fraction` of RoPE's frequencies if one is given."""
    given = {} if base is None else {"base": base}
    return TruncatedRoPE(**given) if fraction is None else ProportionalRoPE(fraction, **given)


SCHEMES: dict[str, Callable[..., Scheme]] = {
    "rope": _rope,
    "p-rope": _p_rope,
    "nope": _nope,
    "rope-ntk": _rope_ntk,
    "yarn": _yarn,
    "logn-rope": _logn_rope,
    "logn-p-rope": _logn_p_rope,
    "logn-ntk": _logn_ntk,
    "alibi": _alibi,
    "scale-invariant-p-rope": _scale_invariant_p_rope,
    "scale-invariant-rope": _scale_invariant_rope,
    "scale-invariant-nope": _scale_invariant_nope,
}
