"""Position schemes: RoPE, its variants and alternatives, each a choice for the same three slots.

>>> from scale_invariant_attention import schemes
>>> schemes.get("logn-rope", train_length=4096)
Scheme(rotary=RoPE(base=10000.0), query_scale=LogN(train_length=4096, counts='query'),
    distance=Unchanged())
"""

from ..theory.schedules import alibi_slopes
from ._positions import TokenPositions
from .distance import ALiBi, Distance, ScaleInvariant, Unchanged
from .layer import SchemeLayer
from .memory import CompressiveMemory
from .named import (
    LineStyle,
    NamedScheme,
    entry,
    get,
    names,
    options,
    register,
    trained_as,
    unregister,
)
from .query_scale import LogN, QueryScale, YaRNTemperature
from .rotary import NTK, ProportionalRoPE, RoPE, Rotary, TruncatedRoPE, YaRN, p_rope, rotation
from .scheme import Scheme

__all__ = [
    "NTK",
    "ALiBi",
    "CompressiveMemory",
    "Distance",
    "LineStyle",
    "LogN",
    "NamedScheme",
    "ProportionalRoPE",
    "QueryScale",
    "RoPE",
    "Rotary",
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
    "names",
    "options",
    "p_rope",
    "register",
    "rotation",
    "trained_as",
    "unregister",
]
