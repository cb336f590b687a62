"""Drawing with matplotlib: figures as PNG and SVG, the style of each scheme, lines with error bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from statistics import linear_regression, mean
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ... import schemes
from ...schemes import LineStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Characters per inch of the small print below a figure.
SMALL_PRINT = 18

# For numbered lines, such as layers and heads.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def title_of(scheme: str) -> str:
    """Title of a scheme; its name if it is not registered, as a record of somebody else's may be.

    >>> title_of("logn-rope"), title_of("their-scheme")
    ('LogN+RoPE', 'their-scheme')
    """
    return schemes.entry(scheme).title if schemes.is_known(scheme) else scheme


def line_of(scheme: str) -> LineStyle:
    """Line style of a scheme, the default one if it is not registered."""
    return schemes.entry(scheme).line if schemes.is_known(scheme) else LineStyle()


def style(scheme: str) -> dict[str, Any]:
    """Keyword arguments of matplotlib's ``plot`` for the line of a scheme."""
    line = line_of(scheme)
    return {
        "color": line.colour,
        "linestyle": line.dash,
        "marker": line.marker,
        "markersize": 5,
        "linewidth": line.width,
        # A thick line lies below those that run along it.
        "zorder": 2.0 if line.width > LineStyle.width else 2.1,
        "label": title_of(scheme),
    }


def new_figure(width: float = 7, height: float = 4) -> "Figure":
    """An empty figure, its size in inches."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'figures need matplotlib; pip install "scale-invariant-attention[plots]" adds it',
            name=missing.name,
        ) from missing
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: "Figure", dpi: int = 150) -> bytes:
    """The bytes of a PNG file; equal figures give equal bytes."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()


def as_svg(figure: "Figure") -> bytes:
    """The bytes of an SVG file with text as text; equal figures give equal bytes."""
    from matplotlib import rc_context

    picture = BytesIO()
    # Without a salt, identifiers are random.
    with rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    return picture.getvalue()


def add_source(figure: "Figure", text: str) -> None:
    """Write the source of a figure below it in small print, wrapped to its width."""
    wrapped = fill(text, int(SMALL_PRINT * figure.get_figwidth()), break_on_hyphens=False)
    figure.supxlabel(wrapped, fontsize=6.5, color="0.35", x=0.01, ha="left")


@dataclass(frozen=True)
class Point:
    """A mean at `x`, with its standard error if there is one."""

    x: float
    mean: float
    standard_error: float | None = None


@dataclass(frozen=True)
class Fit:
    """The line ``slope * x + intercept``, and the share of the variance that it explains."""

    slope: float
    intercept: float
    r_squared: float

    def __str__(self) -> str:
        sign = "+" if self.intercept >= 0 else "-"
        return f"{self.slope:.2f} x {sign} {abs(self.intercept):.2f}, R² {self.r_squared:.4f}"


def straight_line(points: Sequence[Point]) -> Fit:
    """The least-squares line through points.

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
    """Draw points joined by a line, with error bars that legends leave out."""
    x, y = [point.x for point in points], [point.mean for point in points]
    axes.plot(x, y, **look)
    errors = [point.standard_error or 0.0 for point in points]
    if any(errors):
        axes.errorbar(
            x, y, yerr=errors, color=look["color"], linestyle="none", capsize=2, elinewidth=1
        )


def count_axis(axis: Any, values: Sequence[float]) -> None:
    """Put ticks at these numbers of tokens, and nowhere else."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(values, [_short(value) for value in values])
    axis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    """A number of tokens in few characters.

    >>> _short(256), _short(65_536)
    ('256', '64k')
    """
    return f"{value / 1024:.0f}k" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"
