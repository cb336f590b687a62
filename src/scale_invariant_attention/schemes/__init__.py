"""Position schemes: RoPE, its variants and alternatives, each a choice for the same three slots.

>>> from scale_invariant_attention import schemes
>>> schemes.get("logn-rope", train_length=4096)
Scheme(rotary=RoPE(base=10000.0), query_scale=LogN(train_length=4096, counts='query'),
    distance=Unchanged(), window=None)
"""

from ..theory.schedules import alibi_slopes
from ._entries import LineStyle, NamedScheme
from ._hybrids import Llama4Temperature, SWANTemperature
from ._positions import TokenPositions
from .distance import ALiBi, Distance, ScaleInvariant, Unchanged
from .layer import SchemeLayer
from .named import (
    entry,
    get,
    is_known,
    names,
    options,
    register,
    trained_as,
    unregister,
)
from .query_scale import LogN, QueryScale, YaRNTemperature
from .rotary import NTK, ProportionalRoPE, RoPE, Rotary, TruncatedRoPE, YaRN, p_rope, rotation
from .scheme import LayeredScheme, ModelScheme, Scheme

__all__ = [
    "NTK",
    "ALiBi",
    "Distance",
    "LayeredScheme",
    "LineStyle",
    "Llama4Temperature",
    "LogN",
    "ModelScheme",
    "NamedScheme",
    "ProportionalRoPE",
    "QueryScale",
    "RoPE",
    "Rotary",
    "SWANTemperature",
    "ScaleInvariant",
    "Scheme",
    "SchemeLayer",
    "TokenPositions",
    "TruncatedRoPE",
    "Unchanged",
    "YaRN",
    "YaRNTemperature",
    "alibi_slopes",
    "entry",
    "get",
    "is_known",
    "names",
    "options",
    "p_rope",
    "register",
    "rotation",
    "trained_as",
    "unregister",
]
