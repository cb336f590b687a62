"""How lines look on a page, light or dark: those of `styles`, in terms that a browser draws."""

import math
from collections.abc import Sequence
from typing import Any

from ..styles import BLUE, GREEN, GREY, ORANGE, PURPLE, style

Polygon = list[tuple[float, float]]

# The colours of schemes on a dark page: the same hues, light enough to be seen there.
ON_DARK = {
    GREY: "#bdbdbd",
    PURPLE: "#da8fd0",
    ORANGE: "#ff9550",
    GREEN: "#38c9a0",
    BLUE: "#62b6ff",
}

# For lines that are of no scheme, or of another variant of one: light page, dark page.
FURTHER = (
    ("#8c510a", "#d8a25c"),
    ("#b2182b", "#ff8a8a"),
    ("#5e3c99", "#b9a3f2"),
    ("#01665e", "#63d2c6"),
    ("#222222", "#eeeeee"),
)

# On and off, in pixels.
DASHES: dict[str, list[int]] = {"-": [], "--": [8, 4], ":": [2, 4], "-.": [10, 4, 2, 4]}

MARKERS = "osDv^*PX<>"


def scheme_look(scheme: str) -> dict[str, Any]:
    """The look of a scheme."""
    drawn = style(scheme)
    return {
        "light": drawn["color"],
        "dark": ON_DARK[drawn["color"]],
        "dash": DASHES[drawn["linestyle"]],
        "width": drawn["linewidth"],
        "marker": marker(drawn["marker"]),
    }


def further_look(number: int) -> dict[str, Any]:
    """The look of one more line, by its number."""
    light, dark = FURTHER[number % len(FURTHER)]
    dashes: Sequence[list[int]] = list(DASHES.values())
    return {
        "light": light,
        "dark": dark,
        "dash": dashes[number // len(FURTHER) % len(dashes)],
        "width": 1.5,
        "marker": marker(MARKERS[number % len(MARKERS)]),
    }


def marker(name: str) -> Polygon:
    """One of matplotlib's markers as a polygon of about radius 1, downwards being positive.

    >>> marker("D")
    [(0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)]
    """
    # Adding 0 makes no negative zeros.
    return [(round(x, 3) + 0.0, round(y, 3) + 0.0) for x, y in _SHAPES[name]]


def _ring(corners: int, turn: float = 0.0, radii: Sequence[float] = (1.0,)) -> Polygon:
    """Corners on a circle from the top on, `turn` parts of a whole turn later."""
    return [
        (
            radii[corner % len(radii)] * math.sin(2 * math.pi * (corner / corners + turn)),
            -radii[corner % len(radii)] * math.cos(2 * math.pi * (corner / corners + turn)),
        )
        for corner in range(corners)
    ]


def _cross(half: float, turned: bool) -> Polygon:
    """Two bars, twice `half` wide."""
    corner = [(half, -1.0), (half, -half), (1.0, -half)]
    points = []
    for quarter in range(4):
        for x, y in corner:
            for _ in range(quarter):
                x, y = -y, x
            points.append((x, y))
    if not turned:
        return points
    part = math.sqrt(0.5)
    return [((x - y) * part, (x + y) * part) for x, y in points]


_SHAPES: dict[str, Polygon] = {
    "o": _ring(16),
    "s": _ring(4, 1 / 8),
    "D": _ring(4),
    "^": _ring(3),
    ">": _ring(3, 1 / 4),
    "v": _ring(3, 1 / 2),
    "<": _ring(3, 3 / 4),
    "*": _ring(10, radii=(1.2, 0.5)),
    "+": _cross(0.2, turned=False),
    "P": _cross(0.4, turned=False),
    "x": _cross(0.2, turned=True),
    "X": _cross(0.4, turned=True),
}
