"""Position schemes: RoPE, its variants and alternatives, each a choice for the same four slots.

>>> from scale_invariant_attention import schemes
>>> schemes.get("logn-rope", train_length=4096)
Scheme(rotary=RoPE(base=10000.0), query_scale=LogN(train_length=4096, counts='query'),
    distance=Unchanged())
"""

from ..theory.schedules import alibi_slopes
from ._entries import LineStyle, NamedScheme
from ._hybrids import Llama4Temperature, SWANTemperature
from ._positions import TokenPositions
from .biases import APE, NAPE, T5, KerpleLog, KerplePower, Sandwich
from .distance import ALiBi, Distance, ScaleInvariant, Unchanged
from .key_bias import ForgetGate, KeyBias
from .layer import SchemeLayer
from .memory import CompressiveMemory
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
from .query_scale import Inkling, LogN, QueryScale, SqrtLogN, YaRNTemperature
from .rotary import (
    NTK,
    ProportionalRoPE,
    RoPE,
    Rotary,
    TruncatedRoPE,
    YaRN,
    axial_rotation,
    p_rope,
    rotation,
)
from .scheme import LayeredScheme, ModelScheme, Scheme

__all__ = [
    "APE",
    "NAPE",
    "NTK",
    "T5",
    "ALiBi",
    "CompressiveMemory",
    "Distance",
    "ForgetGate",
    "Inkling",
    "KerpleLog",
    "KerplePower",
    "KeyBias",
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
    "Sandwich",
    "ScaleInvariant",
    "Scheme",
    "SchemeLayer",
    "SqrtLogN",
    "TokenPositions",
    "TruncatedRoPE",
    "Unchanged",
    "YaRN",
    "YaRNTemperature",
    "alibi_slopes",
    "axial_rotation",
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
