"""Building blocks of the page as data: tables, charts, heat maps, and how a browser draws lines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, style


@dataclass(frozen=True)
class Cell:
    """A value in a table; `note` stands small beside it, `best` marks it among its column."""

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A line of a table; `key` is the label of the line that a chart has for it, if one has."""

    head: str
    cells: Sequence[Cell]
    key: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a header whose first word is that of the rows' heads."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Axis:
    """What an axis shows; `base` is that of its logarithm, `log` whether it is one at first."""

    label: str
    log: bool = False
    base: int = 10
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of a chart under the label that it is switched by; `error` is drawn around `y`."""

    key: str
    x: Sequence[float]
    y: Sequence[float | None]
    error: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Panel:
    """One of the things that a chart can show."""

    label: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Chart:
    """Panels on the same axes; `mark` is a place on the x axis with its name.

    `alternative` says in words what is to be seen. `looks` are those of lines that are of no scheme.
    """

    name: str
    title: str
    alternative: str
    x: Axis
    y: Axis
    panels: Sequence[Panel]
    mark: tuple[float, str] | None = None
    looks: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Shares in a grid under the label that they are switched by; None where nothing was measured."""

    key: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]


@dataclass(frozen=True)
class Block:
    """A part of a section: sentences, then what they speak of."""

    title: str = ""
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    heat_maps: Sequence[HeatMap] = ()


@dataclass(frozen=True)
class Section:
    """A section with its place in the contents; `finding` is its result in a sentence."""

    name: str
    title: str
    blocks: Sequence[Block]
    finding: str = ""


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
