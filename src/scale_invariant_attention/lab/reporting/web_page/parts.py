"""What sections of a page are made of, as data: tables, charts and heat maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
