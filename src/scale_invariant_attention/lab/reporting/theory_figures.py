"""Figures that need no model: range entropy against distance, and the transform itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .curves import Fit, Point, draw_points, straight_line
from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "marker": "o", "linestyle": "-"},
    {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    {"color": "#d55e00", "marker": "^", "linestyle": "-."},
    {"color": "#009e73", "marker": "D", "linestyle": ":"},
    {"color": "#aa4499", "marker": "v", "linestyle": "-"},
)

Entropies = Mapping[str, Sequence[Mapping[str, Any]]]


def root_log(distance: float) -> float:
    """The square root of the natural logarithm."""
    return math.sqrt(math.log(distance))


def entropy_figure(
    entropies: Entropies, growth: Callable[[float], float], growth_name: str
) -> tuple["Figure", dict[str, Fit]]:
    """Entropy inside ``[t, Delta t)`` against t, and against a growth of t with straight lines.

    Args:
        entropies: for each Delta its rows: start, mean and standard_error.
        growth: what the right panel has on its axis, such as `root_log`.
        growth_name: what it is called there.

    Returns:
        The figure, and the line for each Delta.
    """
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2, sharey=True)
    fits = {}
    for look, (ratio, rows) in zip(LOOKS, entropies.items(), strict=False):
        label = f"Delta = {ratio}"
        marks = {**look, "markersize": 4, "label": label}
        draw_points(left, _points(rows, float), marks)
        straight = _points(rows, growth)
        fits[ratio] = straight_line(straight)
        draw_points(right, straight, {**marks, "linestyle": "none", "label": None})
        ends = [straight[0].x, straight[-1].x]
        right.plot(
            ends,
            [fits[ratio].slope * x + fits[ratio].intercept for x in ends],
            color=look["color"],
            linestyle=look["linestyle"],
            label=f"{label}: {fits[ratio]}",
        )
    left.set_xscale("log")
    left.set_xlabel("t, the start of the range [t, Delta t)")
    left.set_ylabel("entropy inside the range, nats")
    left.legend(fontsize=8, handlelength=3)
    right.set_xlabel(growth_name)
    right.legend(fontsize=8, handlelength=3, title=f"x = {growth_name}", title_fontsize=8)
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    return figure, fits


def transform_figure(transform: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Gain, bias, expected weight and expected mass of a decade against distance, a line for each tau.

    `transform` has for each tau the lists distance, gain, bias, weight and decade_mass.
    """
    figure = new_figure(13, 3.6)
    panels = figure.subplots(1, 4)
    names = ("gain", "bias", "weight", "decade_mass")
    titles = ("gain a_t", "bias m_t", "expected weight", "expected mass of [t, 10 t), over tau")
    for axes, name, title in zip(panels, names, titles, strict=True):
        for look, (tau, table) in zip(LOOKS, transform.items(), strict=False):
            axes.plot(
                table["distance"],
                table[name],
                **{**look, "markevery": 8, "markersize": 4},
                label=f"tau = {tau}",
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axes.set_xlabel("distance t")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    panels[2].set_yscale("log")
    panels[3].set_ylim(bottom=0)
    panels[3].legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, handlelength=3
    )
    return figure


def _points(rows: Sequence[Mapping[str, Any]], place: Callable[[float], float]) -> list[Point]:
    return [Point(place(it["start"]), it["mean"], it["standard_error"]) for it in rows]
