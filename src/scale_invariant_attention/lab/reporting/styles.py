"""How each scheme looks in every figure: told apart by colour, and in greyscale by marker."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Families share a colour that colour-blind readers can tell from the others.
GREY, PURPLE, ORANGE, GREEN, BLUE = "#555555", "#aa4499", "#d55e00", "#009e73", "#0072b2"

_LOOKS = {
    "rope": (GREY, "-", "o"),
    "p-rope": (GREY, "--", "s"),
    "nope": (GREY, ":", "x"),
    "rope-ntk": (PURPLE, "-", "v"),
    "yarn": (PURPLE, "--", "^"),
    "logn-rope": (ORANGE, "-", "P"),
    "logn-p-rope": (ORANGE, "--", "X"),
    "logn-ntk": (ORANGE, ":", "<"),
    "alibi": (GREEN, "-.", "*"),
    "scale-invariant-p-rope": (BLUE, "-", "D"),
    "scale-invariant-rope": (BLUE, "--", ">"),
    "scale-invariant-nope": (BLUE, ":", "+"),
}
OURS = "scale-invariant-p-rope"

# Of lines that are numbered, such as layers and heads.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")

# What the paper's tables call them.
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "rope": "RoPE",
        "p-rope": "p-RoPE",
        "nope": "NoPE",
        "rope-ntk": "RoPE+NTK",
        "yarn": "YaRN",
        "logn-rope": "LogN+RoPE",
        "logn-p-rope": "LogN+p-RoPE",
        "logn-ntk": "LogN+NTK",
        "alibi": "ALiBi",
        "scale-invariant-p-rope": "Scale-inv. p-RoPE",
        "scale-invariant-rope": "Scale-inv. RoPE",
        "scale-invariant-nope": "Scale-inv. NoPE",
    }
)


def style(scheme: str) -> dict[str, Any]:
    """What matplotlib's ``plot`` takes to draw the line of a scheme, one that has no name here too."""
    colour, line, marker = _LOOKS.get(scheme, (BLUE, "-", "o"))
    return {
        "color": colour,
        "linestyle": line,
        "marker": marker,
        "markersize": 5,
        "linewidth": 2.5 if scheme == OURS else 1.5,
        # A thick line lies below those that run along it.
        "zorder": 2.0 if scheme == OURS else 2.1,
        "label": TITLES.get(scheme, scheme),
    }
