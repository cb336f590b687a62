"""Lines with errors, how they are drawn, and straight lines through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean
from typing import Any


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
