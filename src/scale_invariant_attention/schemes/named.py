"""The registry of schemes: ours and those of papers by name, and any that a user registers.

Names joined by commas are a pattern, which repeats over the layers of a model.
"""

from typing import Any

from ..arguments import did_you_mean
from ._entries import COMMA, NamedScheme
from ._hybrids import HYBRIDS
from ._infini import INFINI
from ._our_schemes import CONTROLS, SPREAD
from ._paper_schemes import PAPER_SCHEMES
from ._patterns import NamedPattern
from ._rivals import RIVALS
from .scheme import ModelScheme

__all__ = [
    "BUILT_IN",
    "CONTROLS",
    "HYBRIDS",
    "INFINI",
    "PAPER_SCHEMES",
    "RIVALS",
    "SPREAD",
    "entry",
    "get",
    "is_known",
    "names",
    "options",
    "register",
    "trained_as",
    "unregister",
]

BUILT_IN = (*PAPER_SCHEMES, SPREAD, *CONTROLS, *RIVALS, *INFINI, *HYBRIDS)

# The one registry; only `register` and `unregister` change it.
_REGISTRY = {row.name: row for row in BUILT_IN}


def names() -> tuple[str, ...]:
    """The names of all schemes.

    >>> names()[0], len(names())
    ('rope', 39)
    """
    return tuple(_REGISTRY)


def is_known(name: str) -> bool:
    """Whether this is the name of a scheme, or all names that commas join are.

    >>> is_known("rope"), is_known("rope,nope"), is_known("rope,their-scheme")
    (True, True, False)
    """
    return all(each in _REGISTRY for each in name.split(COMMA))


def entry(name: str) -> NamedScheme:
    """The registry's entry for a scheme name, or one for several names joined by commas.

    >>> entry("logn-rope").title, entry("rope,rope,rope,nope").title
    ('LogN+RoPE', '3 x RoPE, NoPE')
    """
    if isinstance(name, str) and COMMA in name:
        return NamedPattern.of([entry(each) for each in name.split(COMMA)])
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(
            f"there is no scheme {name!r}{did_you_mean(name, _REGISTRY)}; "
            f"the paper's is 'scale-invariant-p-rope', and the schemes are: {', '.join(_REGISTRY)}. "
            f"Names joined by commas are a pattern, which repeats over the layers. "
            f"A scheme of your own is known once the module that registers it is imported: "
            f"sia --import MODULE ..."
        )
    return _REGISTRY[name]


def options(name: str) -> tuple[str, ...]:
    """The options that `get` takes for a scheme.

    >>> options("scale-invariant-rope")
    ('base', 'tau', 'highest_tau', 'learn_tau', 'without', 'sigma', 'mu', 'learn_sigma', 'window')
    >>> options("rope,nope")
    ('rope.base', 'rope.window', 'nope.window')
    """
    return entry(name).options


def get(name: str, **options: Any) -> ModelScheme:
    """The scheme with this name, with options for its slots, or the pattern of names joined by commas.

    >>> get("scale-invariant-p-rope", tau=1.0)
    Scheme(rotary=TruncatedRoPE(base=1024.0, rotating=0.5), query_scale=None,
        distance=ScaleInvariant(tau=1.0, highest_tau=None, learn_tau=False, without=None,
            sigma=1.0, mu=0.0, learn_sigma=False))
    >>> get("rope,rope,nope", **{"rope.window": 64}).of_layer(1)
    Scheme(rotary=RoPE(base=10000.0), query_scale=None, distance=Unchanged(), window=64)
    """
    row = entry(name)
    for option in options:
        if option not in row.options:
            raise TypeError(
                f"scheme {name!r} has no option {option!r}{did_you_mean(option, row.options)}; "
                f"its options are: {', '.join(row.options) or 'none'}"
            )
    return row.build(**options)


def trained_as(name: str) -> str:
    """The scheme whose training is the same: NTK and YaRN change nothing up to the training length.

    >>> trained_as("yarn"), trained_as("logn-ntk"), trained_as("alibi")
    ('rope', 'logn-rope', 'alibi')
    """
    return entry(name).trained_as


def register(scheme: NamedScheme) -> None:
    """Add a scheme, which can then be used by name like those of this package.

    >>> from scale_invariant_attention.schemes import ALiBi, RoPE, Scheme
    >>> register(NamedScheme("alibi-rope", lambda base=1e4: Scheme(RoPE(base), distance=ALiBi())))
    >>> get("alibi-rope", base=500.0)
    Scheme(rotary=RoPE(base=500.0), query_scale=None, distance=ALiBi())
    >>> unregister("alibi-rope")
    """
    if COMMA in scheme.name:
        raise ValueError(f"name must have no commas, which join patterns, got {scheme.name!r}")
    if scheme.name in _REGISTRY:
        raise ValueError(f"there is already a scheme {scheme.name!r}: choose another name")
    if scheme.title in {row.title for row in _REGISTRY.values()}:
        raise ValueError(f"title {scheme.title!r} already names another scheme: choose another")
    if scheme.trained_as != scheme.name:
        entry(scheme.trained_as)
    built = scheme.build()
    if not isinstance(built, ModelScheme):
        raise TypeError(
            f"build must return a Scheme or a LayeredScheme, got {built!r} for {scheme.name!r}"
        )
    _REGISTRY[scheme.name] = scheme


def unregister(name: str) -> None:
    """Remove a scheme that `register` added."""
    if entry(name) in BUILT_IN:
        raise ValueError(f"scheme {name!r} belongs to this package and cannot be removed")
    del _REGISTRY[name]
