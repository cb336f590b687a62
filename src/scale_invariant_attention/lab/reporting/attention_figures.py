"""Figure 1 and the QQ plots: what attention does with length, in theory and in trained models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .attention import range_entropies
from .curves import Point, count_axis, draw_points
from .figures import new_figure
from .losses import Record, scheme_of
from .styles import MARKERS, TITLES, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGES = ((10, 100), (100, 1000))
PANELS = (
    "global entropy",
    *(f"entropy inside {a}-{b}" for a, b in RANGES),
    "share on the last 100 tokens",
)

# Schedules of Gaussian scores look like the models that have them.
SCHEDULES = {"plain": "p-rope", "logn": "logn-p-rope", "scale-invariant": "scale-invariant-p-rope"}
SCHEDULE_TITLES = {"plain": "plain", "logn": "LogN, s = 0.4", "scale-invariant": "scale-invariant"}

# Quantile plots reach at least so many standard deviations to both sides.
REACH = 5.0

# The lines of one panel, by scheme.
Panel = dict[str, list[Point]]


def against_length_figure(
    gaussian: Mapping[str, Sequence[Mapping[str, Any]]], records: Iterable[Record]
) -> "Figure":
    """Four panels a row against context length: Gaussian scores above, trained models below.

    `gaussian` has, for each schedule, an entry a length as `range_entropies` and the records have them.
    """
    figure = new_figure(13, 6.2)
    upper, lower = figure.subplots(2, len(PANELS))
    above = {SCHEDULES[name]: {"attention": rows} for name, rows in gaussian.items()}
    below = {scheme_of(record): record for record in records}
    titles = {SCHEDULES[name]: title for name, title in SCHEDULE_TITLES.items()}
    _draw_row(upper, above, titles)
    _draw_row(lower, below, TITLES)
    for axes, title in zip(upper, PANELS, strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("")
    # The first column names the rows and its unit.
    upper[0].set_ylabel("IID Gaussian scores\nnats")
    lower[0].set_ylabel("trained models\nnats")
    for axes in (upper[-1], lower[-1]):
        axes.set_ylabel("share of attention")
        axes.set_ylim(0, 1)
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, handlelength=3
        )
    return figure


def _draw_row(row: Sequence[Any], records: Mapping[str, Record], titles: Mapping[str, str]) -> None:
    panels = _panels(records)
    for axes, panel in zip(row, panels, strict=True):
        lengths = sorted({point.x for points in panels[0].values() for point in points})
        for scheme, points in panel.items():
            draw_points(axes, points, {**style(scheme), "label": titles.get(scheme, scheme)})
        axes.set_xscale("log", base=2)
        axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
        count_axis(axes.xaxis, lengths)
        axes.set_xlabel("context length")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def _panels(records: Mapping[str, Record]) -> list[Panel]:
    panels: list[Panel] = [{} for _ in PANELS]
    for scheme, record in records.items():
        whole = {it["length"]: it["overall"]["global_entropy"][0] for it in record["attention"]}
        recent = {it["length"]: it["overall"]["recent_share"][0] for it in record["attention"]}
        inside = [range_entropies(record, start, stop) for start, stop in RANGES]
        for panel, values in zip(panels, (whole, *inside, recent), strict=True):
            panel[scheme] = [
                Point(length, it["mean"], it["standard_error"]) for length, it in values.items()
            ]
    return panels


def quantile_figure(record: Record, length: int) -> "Figure":
    """Quantiles of every head's scores, standardised, against a Gaussian's: after and before rotary.

    One row is left where nothing rotates, and where scores before rotary are not known.
    """
    (entry,) = [it for it in record["attention"] if it["length"] == length]
    layers: Sequence[Mapping[str, Any]] = entry["layers"]
    rows = [("after rotary", "scores"), ("before rotary", "unrotated_scores")]
    if any(layer["unrotated_scores"] is None for layer in layers):
        rows = rows[:1]
    elif all(layer["scores"] == layer["unrotated_scores"] for layer in layers):
        rows = [("nothing rotates", "scores")]
    figure = new_figure(2.4 * len(layers) + 1.4, 0.8 + 2.3 * len(rows))
    grid = figure.subplots(len(rows), len(layers), sharex=True, sharey=True, squeeze=False)
    for line, (title, name) in zip(grid, rows, strict=True):
        for axes, layer in zip(line, layers, strict=True):
            _draw_quantiles(axes, layer[name])
        line[0].set_ylabel(f"{title}\nquantiles of scores")
    for axes, layer in zip(grid[0], layers, strict=True):
        axes.set_title(f"layer {layer['layer']}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("quantiles of N(0, 1)")
    # All panels share their axes: from here on nothing lies outside of them.
    farthest = max(abs(y) for axes in grid.flat for it in axes.get_lines() for y in it.get_ydata())
    reach = max(REACH, 1.05 * farthest)
    grid[0, 0].set_xlim(-3.2, 3.2)
    grid[0, 0].set_ylim(-reach, reach)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside right upper",
        fontsize=8,
        frameon=False,
        handlelength=3.5,
    )
    return figure


def _draw_quantiles(axes: Any, scores: Mapping[str, Any]) -> None:
    normal = scores["normal_quantiles"]
    axes.plot([-3, 3], [-3, 3], color="0.6", linewidth=1, label="N(0, 1)")
    for head, (mean, variance, quantiles) in enumerate(
        zip(scores["mean"], scores["variance"], scores["quantiles"], strict=True)
    ):
        spread = variance**0.5
        axes.plot(
            normal,
            [(it - mean) / spread for it in quantiles],
            color=_SHADES[head % len(_SHADES)],
            linestyle=_LINES[head % len(_LINES)],
            linewidth=1.2,
            marker=MARKERS[head % len(MARKERS)],
            markersize=4,
            # Heads that run together have their markers one after the other.
            markevery=(2 * head % _APART, _APART),
            label=f"head {head}",
        )
    low, high = (f(scores["variance"]) ** 0.5 for f in (min, max))
    axes.text(
        0.04,
        0.96,
        f"spread {low:.2f} to {high:.2f}\nmean {min(scores['mean']):+.2f} to "
        f"{max(scores['mean']):+.2f}",
        transform=axes.transAxes,
        va="top",
        fontsize=7,
    )
    axes.grid(alpha=0.3)


_SHADES = ("#000000", "#0072b2", "#d55e00", "#009e73")
_LINES = ("-", "--", "-.", ":")
_APART = 8  # quantiles from marker to marker
