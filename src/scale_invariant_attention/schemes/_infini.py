"""Infini-attention, the paper's Table 3."""

from ._entries import WINE, LineStyle, NamedScheme, Slots, p_rope_of
from .memory import CompressiveMemory
from .rotary import RoPE

INFINI_ATTENTION = "Munkhdalai et al., 2024, arXiv:2404.07143"
MEMORY = "inside segments; plus sigmoid(g) of the memory's value, (elu(q) + 1) M / ((elu(q) + 1) z), g learned"

INFINI = (
    NamedScheme(
        "infini-rope",
        Slots(rotary=RoPE, memory=CompressiveMemory),
        "Infini-RoPE",
        "RoPE inside segments; of the segments before, a memory of fixed size.",
        INFINI_ATTENTION,
        LineStyle(*WINE, "-", "d"),
        formula=f"RoPE {MEMORY}",
    ),
    NamedScheme(
        "infini-p-rope",
        Slots(rotary=p_rope_of, memory=CompressiveMemory),
        "Infini-p-RoPE",
        "p-RoPE inside segments; of the segments before, a memory of fixed size.",
        INFINI_ATTENTION,
        LineStyle(*WINE, "--", "H"),
        formula=f"p-RoPE {MEMORY}",
    ),
)
