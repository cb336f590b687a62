"""Drawing with matplotlib: figures as PNG and SVG, the style of each scheme, lines with error bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from statistics import linear_regression, mean
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


# Of the small print below a figure.
LETTERS_AN_INCH = 18


def new_figure(width: float = 7, height: float = 4) -> "Figure":
    """An empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'figures need matplotlib; pip install "scale-invariant-attention[plots]" adds it',
            name=missing.name,
        ) from missing
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: "Figure", dpi: int = 150) -> bytes:
    """The content of a PNG file, the same for the same figure."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()


def as_svg(figure: "Figure") -> bytes:
    """The content of an SVG file, the same for the same figure, with text as text."""
    from matplotlib import rc_context

    picture = BytesIO()
    # Names of parts are random otherwise.
    with rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    return picture.getvalue()


def add_source(figure: "Figure", text: str) -> None:
    """What a figure was made from, in small print below it, in as many lines as its width needs."""
    wrapped = fill(text, int(LETTERS_AN_INCH * figure.get_figwidth()), break_on_hyphens=False)
    figure.supxlabel(wrapped, fontsize=6.5, color="0.35", x=0.01, ha="left")


@dataclass(frozen=True)
class Point:
    """A mean at some place, and its standard error where there is one."""

    x: float
    mean: float
    standard_error: float | None = None


@dataclass(frozen=True)
class Fit:
    """``slope * x + intercept``, and the part of the variance that it accounts for."""

    slope: float
    intercept: float
    r_squared: float

    def __str__(self) -> str:
        sign = "+" if self.intercept >= 0 else "-"
        return f"{self.slope:.2f} x {sign} {abs(self.intercept):.2f}, R² {self.r_squared:.4f}"


def straight_line(points: Sequence[Point]) -> Fit:
    """The line through points by least squares.

    >>> print(straight_line([Point(0, 1.0), Point(1, 3.0), Point(2, 5.0)]))
    2.00 x + 1.00, R² 1.0000
    """
    x, y = [point.x for point in points], [point.mean for point in points]
    slope, intercept = linear_regression(x, y)
    centre = mean(y)
    left = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True))
    whole = sum((b - centre) ** 2 for b in y)
    return Fit(slope, intercept, 1 - left / whole if whole else 1.0)


def draw_points(axes: Any, points: Sequence[Point], look: Mapping[str, Any]) -> None:
    """Points joined by a line, with a bar for each error, which legends leave out."""
    x, y = [point.x for point in points], [point.mean for point in points]
    axes.plot(x, y, **look)
    errors = [point.standard_error or 0.0 for point in points]
    if any(errors):
        axes.errorbar(
            x, y, yerr=errors, color=look["color"], linestyle="none", capsize=2, elinewidth=1
        )


def count_axis(axis: Any, values: Sequence[float]) -> None:
    """Ticks at these numbers of tokens, and nowhere else."""
    axis.set_ticks(values, [_short(value) for value in values])
    axis.set_minor_locator(_no_ticks())


def _short(value: float) -> str:
    """A number of tokens in few characters.

    >>> _short(256), _short(65_536)
    ('256', '64k')
    """
    return f"{value / 1024:.0f}k" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
