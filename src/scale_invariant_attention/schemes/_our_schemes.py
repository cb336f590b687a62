"""The recommended scheme, and controls that show what its parts and those of the paper's contribute."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ._entries import (
    BLACK,
    BLUE,
    GREEN,
    PRESS,
    SCALE_INVARIANT,
    LineStyle,
    NamedScheme,
    Slots,
    p_rope_of,
)
from .distance import ALiBi, ScaleInvariant
from .rotary import TruncatedRoPE

HERE = "this package"
GAIN, BIAS = "gain sqrt(1 + 2 log(1 + t/tau))", "bias -2 log(1 + t/tau)"
TEN, SPREAD_OUT = "tau = 10", "tau from 1 to 30 over the heads"

_quarter, _eighth = (partial(TruncatedRoPE, rotating=part) for part in (1 / 4, 1 / 8))
_spread = partial(ScaleInvariant, tau=1.0, highest_tau=30.0)


def _transform(
    tau: float = 10.0, highest_tau: float | None = None, **fixed: Any
) -> Callable[..., ScaleInvariant]:
    """The transform with `fixed` options, whose tau remains an option."""

    def transform(tau: float = tau, highest_tau: float | None = highest_tau) -> ScaleInvariant:
        return ScaleInvariant(tau, highest_tau, **fixed)

    return transform


# The recommended scheme.
SPREAD = NamedScheme(
    "scale-invariant-spread",
    Slots(rotary=_quarter, distance=_spread),
    "Scale-inv. spread",
    "Scale-invariant p-RoPE with a tau of its own in each head, spaced evenly on a logarithmic scale: "
    "some heads look close by, others far. A quarter of the pairs of dimensions rotate.",
    HERE,
    LineStyle(*BLACK, "-", "h", width=2.5),
    formula=f"p-RoPE in a quarter of the pairs, {GAIN}, {BIAS}, {SPREAD_OUT}",
)

# What each part of the recommended scheme contributes, then each part of the paper's.
CONTROLS = (
    NamedScheme(
        "scale-invariant-quarter",
        Slots(rotary=_quarter, distance=ScaleInvariant),
        "Scale-inv. quarter",
        "The paper's method with a quarter of the pairs rotating: one tau in all heads.",
        HERE,
        LineStyle(*BLACK, "-.", "3"),
        formula=f"p-RoPE in a quarter of the pairs, {GAIN}, {BIAS}, {TEN}",
    ),
    NamedScheme(
        "spread-half",
        Slots(rotary=p_rope_of, distance=_spread),
        "Spread, half rotating",
        "The recommended scheme with half of the pairs rotating, as in the paper.",
        HERE,
        LineStyle(*BLACK, "-", "4"),
        formula=f"p-RoPE, {GAIN}, {BIAS}, {SPREAD_OUT}",
    ),
    NamedScheme(
        "spread-eighth",
        Slots(rotary=_eighth, distance=_spread),
        "Spread, an eighth rotating",
        "The recommended scheme with an eighth of the pairs rotating.",
        HERE,
        LineStyle(*BLACK, "--", "d"),
        formula=f"p-RoPE in an eighth of the pairs, {GAIN}, {BIAS}, {SPREAD_OUT}",
    ),
    NamedScheme(
        "spread-nope",
        Slots(distance=_spread),
        "Spread, none rotating",
        "The recommended scheme without any rotation.",
        HERE,
        LineStyle(*BLACK, ":", "|"),
        formula=f"{GAIN}, {BIAS}, {SPREAD_OUT}",
    ),
    NamedScheme(
        "spread-learned-tau",
        Slots(rotary=_quarter, distance=_transform(1.0, 30.0, learn_tau=True)),
        "Spread, tau learned",
        "The recommended scheme, in which every head of every layer learns its tau, starting from the "
        "spread.",
        HERE,
        LineStyle(*BLACK, "-.", "H"),
        formula=f"p-RoPE in a quarter of the pairs, {GAIN}, {BIAS}, tau learned per head",
    ),
    NamedScheme(
        "spread-without-gain",
        Slots(rotary=_quarter, distance=_transform(1.0, 30.0, without="gain")),
        "Spread, bias alone",
        "The recommended scheme without its gain: a logarithmic penalty by distance, as in KERPLE.",
        "Chi et al., 2022, arXiv:2205.09921",
        LineStyle(*BLACK, "--", "1"),
        formula=f"p-RoPE in a quarter of the pairs, gain 1, {BIAS}, {SPREAD_OUT}",
    ),
    NamedScheme(
        "spread-without-bias",
        Slots(rotary=_quarter, distance=_transform(1.0, 30.0, without="bias")),
        "Spread, gain alone",
        "The recommended scheme without its bias: logits that grow with distance.",
        HERE,
        LineStyle(*BLACK, ":", "2"),
        formula=f"p-RoPE in a quarter of the pairs, {GAIN}, bias 0, {SPREAD_OUT}",
    ),
    NamedScheme(
        "alibi-p-rope",
        Slots(rotary=_quarter, distance=ALiBi),
        "ALiBi+p-RoPE",
        "ALiBi's penalty with the rotation of the recommended scheme.",
        PRESS,
        LineStyle(*GREEN, "--", "p"),
        formula="p-RoPE in a quarter of the pairs, gain 1, bias -m t, m as in ALiBi",
    ),
    NamedScheme(
        "scale-invariant-learned-tau",
        Slots(rotary=p_rope_of, distance=_transform(learn_tau=True)),
        "Scale-inv. tau learned",
        "The paper's method, in which every head of every layer learns its tau, starting from the "
        "paper's 10.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "-.", "$l$"),
        formula=f"p-RoPE, {GAIN}, {BIAS}, tau learned per head",
    ),
    NamedScheme(
        "scale-invariant-without-gain",
        Slots(rotary=p_rope_of, distance=_transform(without="gain")),
        "Scale-inv. bias alone",
        "The paper's method without its gain: KERPLE's logarithmic penalty with fixed coefficients.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "--", "$b$"),
        formula=f"p-RoPE, gain 1, {BIAS}, {TEN}",
    ),
    NamedScheme(
        "scale-invariant-without-bias",
        Slots(rotary=p_rope_of, distance=_transform(without="bias")),
        "Scale-inv. gain alone",
        "The paper's method without its bias: logits that grow with distance.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, ":", "$g$"),
        formula=f"p-RoPE, {GAIN}, bias 0, {TEN}",
    ),
    NamedScheme(
        "scale-invariant-without-sparsity",
        Slots(rotary=p_rope_of, distance=_transform(without="sparsity")),
        "Scale-inv. total attention",
        "The first of the paper's two conditions alone: total attention by distance, which takes half "
        "of the penalty and no gain.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "-", "$t$"),
        formula=f"p-RoPE, gain 1, bias -log(1 + t/tau), {TEN}",
    ),
)
