"""Infini-attention, the paper's Table 3."""

from ._entries import WINE, LineStyle, NamedScheme, Slots, p_rope_of
from .memory import CompressiveMemory
from .rotary import RoPE

INFINI_ATTENTION = "Munkhdalai et al., 2024, arXiv:2404.07143"
MEMORY = "inside segments, mixed with what s(q) = elu(q) + 1 retrieves from before: s(q) M / s(q) z"

INFINI = (
    NamedScheme(
        "infini-rope",
        Slots(rotary=RoPE, memory=CompressiveMemory),
        "Infini-RoPE",
        "RoPE within segments, plus a fixed-size memory of earlier segments.",
        INFINI_ATTENTION,
        LineStyle(*WINE, "-", "$m$"),
        formula=f"RoPE {MEMORY}",
    ),
    NamedScheme(
        "infini-p-rope",
        Slots(rotary=p_rope_of, memory=CompressiveMemory),
        "Infini-p-RoPE",
        "p-RoPE within segments, plus a fixed-size memory of earlier segments.",
        INFINI_ATTENTION,
        LineStyle(*WINE, "--", "$w$"),
        formula=f"p-RoPE {MEMORY}",
    ),
)
