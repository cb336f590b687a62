"""Building blocks of the page as data: tables, charts, heat maps, and how a browser draws lines."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...tables import Table
from ..drawing import line_of

Polygon = list[tuple[float, float]]

# For lines that belong to no scheme, or to another variant of one: on a light page, on a dark one.
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


@dataclass(frozen=True)
class Axis:
    """An axis: `log` if it starts out logarithmic, `base` that of the logarithm."""

    label: str
    log: bool = False
    base: int = 10
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of a chart; `key` is the label that switches it, `error` is drawn around `y`."""

    key: str
    x: Sequence[float]
    y: Sequence[float | None]
    error: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Panel:
    """One of the sets of lines that a chart can show."""

    label: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Chart:
    """Panels on the same axes; `mark` is a value on the x axis with its name.

    `alternative` describes the chart in words. `looks` are those of lines that belong to no scheme.
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
    """Shares in a grid; `key` is the label that switches it. None where nothing was measured."""

    key: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]


@dataclass(frozen=True)
class Block:
    """A part of a section: sentences, then tables, charts and heat maps."""

    title: str = ""
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    heat_maps: Sequence[HeatMap] = ()


@dataclass(frozen=True)
class Section:
    """A section; `name` is its anchor, `finding` its result in a sentence."""

    name: str
    title: str
    blocks: Sequence[Block]
    finding: str = ""


def scheme_look(scheme: str) -> dict[str, Any]:
    """The look of a scheme's lines."""
    line = line_of(scheme)
    return {
        "light": line.colour,
        "dark": line.dark_colour,
        "dash": DASHES.get(line.dash, []),
        "width": line.width,
        "marker": marker(line.marker),
    }


def scheme_looks(scheme: str) -> Iterator[dict[str, Any]]:
    """Looks in the colour of a scheme: its own, then with other dashes."""
    own = scheme_look(scheme)
    yield own
    yield from ({**own, "dash": dash} for dash in DASHES.values() if dash != own["dash"])


def further_look(number: int) -> dict[str, Any]:
    """The look of a line that belongs to no scheme, by its number; the first 200 all differ."""
    colours, dashes = len(FURTHER), list(DASHES.values())
    light, dark = FURTHER[number % colours]
    return {
        "light": light,
        "dark": dark,
        "dash": dashes[number // colours % len(dashes)],
        "width": 1.5,
        "marker": marker(MARKERS[(number + number // (colours * len(dashes))) % len(MARKERS)]),
    }


def further_looks() -> Iterator[dict[str, Any]]:
    """Looks of lines that belong to no scheme, without end; they get thicker once all were used."""
    for number in count():
        look = further_look(number)
        yield {**look, "width": look["width"] + 0.5 * (number // 200)}


def marker(name: str) -> Polygon:
    """One of matplotlib's markers as a polygon of about radius 1, y pointing down; "o" if unknown.

    >>> marker("D")
    [(0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)]
    """
    # Adding 0 turns negative zeros into positive ones.
    return [(round(x, 3) + 0.0, round(y, 3) + 0.0) for x, y in _SHAPES.get(name, _SHAPES["o"])]


def _ring(corners: int, turn: float = 0.0, radii: Sequence[float] = (1.0,)) -> Polygon:
    """Corners on a circle, clockwise from the top, rotated by `turn` of a full turn."""
    return [
        (
            radii[corner % len(radii)] * math.sin(2 * math.pi * (corner / corners + turn)),
            -radii[corner % len(radii)] * math.cos(2 * math.pi * (corner / corners + turn)),
        )
        for corner in range(corners)
    ]


def _cross(half: float, turned: bool) -> Polygon:
    """Two crossed bars of width ``2 * half``."""
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
    "d": _ring(4, radii=(1.0, 0.6)),
    "H": _ring(6, 1 / 12),
    "|": [(-0.2, -1.0), (0.2, -1.0), (0.2, 1.0), (-0.2, 1.0)],
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
