"""The registry of schemes: the paper's and ours by name, and any that a user registers.

Names joined by commas are a pattern, which repeats over the layers of a model.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..arguments import did_you_mean
from ._entries import (
    BLACK,
    BLUE,
    COMMA,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    LineStyle,
    NamedScheme,
)
from ._hybrids import HYBRIDS
from ._patterns import NamedPattern
from .distance import ALiBi, ScaleInvariant
from .query_scale import LogN, YaRNTemperature
from .rotary import NTK, ProportionalRoPE, RoPE, Rotary, TruncatedRoPE, YaRN
from .scheme import ModelScheme, Scheme


def names() -> tuple[str, ...]:
    """The names of all schemes.

    >>> names()[0], len(names())
    ('rope', 21)
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
            sigma=1.0, mu=0.0, learn_sigma=False), window=None)
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

    >>> register(NamedScheme("alibi-rope", lambda base=1e4: Scheme(RoPE(base), distance=ALiBi())))
    >>> get("alibi-rope", base=500.0)
    Scheme(rotary=RoPE(base=500.0), query_scale=None, distance=ALiBi(), window=None)
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


WINDOW = inspect.Parameter("window", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


class _Slots:
    """Builds a scheme from the classes that fill its slots, whose options are the scheme's.

    An option that two slots have, such as `train_length`, is one option of the scheme. Every scheme
    takes a `window`.
    """

    def __init__(self, **slots: Callable[..., Any]) -> None:
        self.options = {slot: inspect.signature(fill).parameters for slot, fill in slots.items()}
        self.slots = slots
        merged = {name: each for options in self.options.values() for name, each in options.items()}
        self.__signature__ = inspect.Signature([*merged.values(), WINDOW])

    def __call__(self, *values: Any, **options: Any) -> Scheme:
        given = self.__signature__.bind(*values, **options).arguments
        filled = {
            slot: fill(**{name: given[name] for name in self.options[slot] if name in given})
            for slot, fill in self.slots.items()
        }
        return Scheme(**filled, window=given.get(WINDOW.name))


def _p_rope(
    base: float | None = None, fraction: float | None = None, rotating: float | None = None
) -> Rotary:
    """The paper's frequencies, or a `fraction` of RoPE's if one is given."""
    if fraction is not None and rotating is not None:
        raise ValueError(
            f"fraction and rotating exclude each other, got {fraction} and {rotating}: give fraction "
            f"for a part of RoPE's frequencies, rotating for the paper's in a part of the pairs"
        )
    options = {"base": base, "fraction": fraction, "rotating": rotating}
    given = {name: value for name, value in options.items() if value is not None}
    return TruncatedRoPE(**given) if fraction is None else ProportionalRoPE(**given)


def _quarter(base: float = 1024.0, rotating: float = 0.25) -> Rotary:
    """The rotary of the recommended scheme: the paper's frequencies in a quarter of the pairs."""
    return TruncatedRoPE(base, rotating)


def _spread(
    tau: float = 1.0,
    highest_tau: float | None = 30.0,
    learn_tau: bool = False,
    without: str | None = None,
    sigma: float | Sequence[float] = 1.0,
    mu: float | Sequence[float] = 0.0,
    learn_sigma: bool = False,
) -> ScaleInvariant:
    """The transform with the recommended spread of tau over the heads."""
    return ScaleInvariant(tau, highest_tau, learn_tau, without, sigma, mu, learn_sigma)


def _spread_without_gain(tau: float = 1.0, highest_tau: float | None = 30.0) -> ScaleInvariant:
    return _spread(tau, highest_tau, without="gain")


def _spread_without_bias(tau: float = 1.0, highest_tau: float | None = 30.0) -> ScaleInvariant:
    return _spread(tau, highest_tau, without="bias")


ROFORMER = "Su et al., 2021, arXiv:2104.09864"
P_ROPE = "Barbero et al., 2024, arXiv:2410.06205"
SCALABLE_SOFTMAX = "Nakanishi, 2025, arXiv:2501.19399"
SCALE_INVARIANT = "Anson et al., 2025, arXiv:2505.17083"

# In the order of the paper's tables.
PAPER_SCHEMES = (
    NamedScheme(
        "rope",
        _Slots(rotary=RoPE),
        "RoPE",
        "Queries and keys are rotated by angles that grow with position, so that scores depend on "
        "distance.",
        ROFORMER,
        LineStyle(*GREY, "-", "o"),
    ),
    NamedScheme(
        "p-rope",
        _Slots(rotary=_p_rope),
        "p-RoPE",
        "RoPE without its slow rotations: half of the pairs of dimensions do not rotate.",
        P_ROPE,
        LineStyle(*GREY, "--", "s"),
    ),
    NamedScheme(
        "nope",
        _Slots(),
        "NoPE",
        "No positions except through the causal mask.",
        "Kazemnejad et al., 2023, arXiv:2305.19466",
        LineStyle(*GREY, ":", "x"),
    ),
    NamedScheme(
        "rope-ntk",
        _Slots(rotary=NTK),
        "RoPE+NTK",
        "Trained as RoPE; beyond the training length the base grows with the context, which keeps "
        "the slow rotations within the range seen in training.",
        "bloc97, 2023, NTK-aware scaled RoPE",
        LineStyle(*PURPLE, "-", "v"),
        trained_as="rope",
    ),
    NamedScheme(
        "yarn",
        _Slots(rotary=YaRN, query_scale=YaRNTemperature),
        "YaRN",
        "Trained as RoPE; beyond the training length slow rotations become slower, fast ones stay, "
        "and logits are sharpened a little.",
        "Peng et al., 2023, arXiv:2309.00071",
        LineStyle(*PURPLE, "--", "^"),
        trained_as="rope",
    ),
    NamedScheme(
        "logn-rope",
        _Slots(query_scale=LogN, rotary=RoPE),
        "LogN+RoPE",
        "RoPE with logits multiplied by the logarithm of the number of tokens seen, times a learned "
        "factor: sharper as the context grows.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, "-", "P"),
    ),
    NamedScheme(
        "logn-p-rope",
        _Slots(query_scale=LogN, rotary=_p_rope),
        "LogN+p-RoPE",
        "p-RoPE with logits multiplied by the logarithm of the number of tokens seen, times a "
        "learned factor.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, "--", "X"),
    ),
    NamedScheme(
        "logn-ntk",
        _Slots(query_scale=LogN, rotary=NTK),
        "LogN+NTK",
        "Trained as LogN+RoPE; evaluated with NTK's growing base.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, ":", "<"),
        trained_as="logn-rope",
    ),
    NamedScheme(
        "alibi",
        _Slots(distance=ALiBi),
        "ALiBi",
        "A penalty proportional to distance, with a different slope for each head, and no rotation.",
        "Press et al., 2021, arXiv:2108.12409",
        LineStyle(*GREEN, "-.", "*"),
    ),
    NamedScheme(
        "scale-invariant-p-rope",
        _Slots(rotary=_p_rope, distance=ScaleInvariant),
        "Scale-inv. p-RoPE",
        "p-RoPE with a gain and a bias by distance that give every decade of distances about the "
        "same total attention, and few tokens most of it: the paper's method.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "-", "D", width=2.5),
    ),
    NamedScheme(
        "scale-invariant-rope",
        _Slots(rotary=RoPE, distance=ScaleInvariant),
        "Scale-inv. RoPE",
        "The same gain and bias by distance on top of RoPE.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "--", ">"),
    ),
    NamedScheme(
        "scale-invariant-nope",
        _Slots(distance=ScaleInvariant),
        "Scale-inv. NoPE",
        "The same gain and bias by distance without any rotation.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, ":", "+"),
    ),
)

# The recommended scheme.
SPREAD = NamedScheme(
    "scale-invariant-spread",
    _Slots(rotary=_quarter, distance=_spread),
    "Scale-inv. spread",
    "Scale-invariant p-RoPE with a tau of its own in each head, spaced evenly on a logarithmic scale: "
    "some heads look close by, others far. A quarter of the pairs of dimensions rotate.",
    "this package",
    LineStyle(*BLACK, "-", "h", width=2.5),
)

# Schemes that show what each part of the recommended one contributes.
CONTROLS = (
    NamedScheme(
        "scale-invariant-quarter",
        _Slots(rotary=_quarter, distance=ScaleInvariant),
        "Scale-inv. quarter",
        "The paper's method with a quarter of the pairs rotating: one tau in all heads.",
        "this package",
        LineStyle(*BLACK, "-.", "3"),
    ),
    NamedScheme(
        "spread-half",
        _Slots(rotary=_p_rope, distance=_spread),
        "Spread, half rotating",
        "The recommended scheme with half of the pairs rotating, as in the paper.",
        "this package",
        LineStyle(*BLACK, "-", "4"),
    ),
    NamedScheme(
        "spread-without-gain",
        _Slots(rotary=_quarter, distance=_spread_without_gain),
        "Spread, bias alone",
        "The recommended scheme without its gain: a logarithmic penalty by distance, as in KERPLE.",
        "Chi et al., 2022, arXiv:2205.09921",
        LineStyle(*BLACK, "--", "1"),
    ),
    NamedScheme(
        "spread-without-bias",
        _Slots(rotary=_quarter, distance=_spread_without_bias),
        "Spread, gain alone",
        "The recommended scheme without its bias: logits that grow with distance.",
        "this package",
        LineStyle(*BLACK, ":", "2"),
    ),
    NamedScheme(
        "alibi-p-rope",
        _Slots(rotary=_quarter, distance=ALiBi),
        "ALiBi+p-RoPE",
        "ALiBi's penalty with the rotation of the recommended scheme.",
        "Press et al., 2021, arXiv:2108.12409",
        LineStyle(*GREEN, "--", "p"),
    ),
)
BUILT_IN = (*PAPER_SCHEMES, SPREAD, *CONTROLS, *HYBRIDS)

# The one registry; only `register` and `unregister` change it.
_REGISTRY = {row.name: row for row in BUILT_IN}
