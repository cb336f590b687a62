"""Figures of attention: against length, score quantiles, theory (entropy, transform), a diagnosis."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .attention import range_entropies
from .drawing import (
    MARKERS,
    TITLES,
    Fit,
    Point,
    as_png,
    count_axis,
    draw_points,
    new_figure,
    straight_line,
    style,
)
from .losses import Record, scheme_of

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


def draw_diagnosis(found: Mapping[str, Any], *, title: str) -> bytes:
    """A PNG of a diagnosis as it is recorded, with a line a layer, from dark to light."""
    figure = new_figure(11, 3.6)
    mass, sparsity, scores = figure.subplots(1, 3)
    layers: Sequence[Mapping[str, Any]] = found["layers"]
    for place, layer in enumerate(layers):
        look = _look(place, len(layers))
        far = [it for it in layer["ranges"] if it["start"] > 0]
        middles = [math.sqrt(it["start"] * it["stop"]) for it in far]
        per_decade = [it["share"] / math.log10(it["stop"] / it["start"]) for it in far]
        mass.plot(middles, per_decade, **look)
        # A range that no query sees has no part, and leaves a gap.
        parts = [math.nan if it["part"] is None else it["part"] for it in far]
        sparsity.plot(middles, parts, **look)
        low, high = layer["score_spreads"]
        scores.errorbar(
            [layer["layer"]],
            [layer["score_spread"]],
            yerr=[
                [max(0.0, layer["score_spread"] - low)],
                [max(0.0, high - layer["score_spread"])],
            ],
            capsize=4,
            **{**look, "linestyle": "none"},
        )
    scores.plot(
        [layer["layer"] for layer in layers],
        [layer["score_mean"] for layer in layers],
        color="black",
        marker="_",
        markersize=14,
        linestyle="none",
    )
    for axes in (mass, sparsity):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("distance in tokens")
    mass.set_title("share of attention, a decade", fontsize=10)
    sparsity.set_title("part of the tokens that it falls on", fontsize=10)
    scores.axhline(1, color="0.5", linewidth=1, linestyle="--")
    scores.axhline(0, color="0.5", linewidth=1, linestyle=":")
    scores.set_title("scores: spread with heads, mean as a dash", fontsize=10)
    scores.set_xlabel("layer")
    scores.set_xticks([layer["layer"] for layer in layers])
    for axes in (mass, sparsity, scores):
        axes.grid(alpha=0.3)
    figure.legend(
        *mass.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False
    )
    figure.suptitle(f"{title}, at {found['length']:,} tokens", fontsize=11)
    return as_png(figure)


def _look(place: int, count: int) -> dict[str, Any]:
    """Darker for the first layers, and a marker each, so that greyscale tells them apart."""
    from matplotlib import colormaps

    shade = place / max(1, count - 1)
    return {
        "color": colormaps["viridis"](0.85 * shade),
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 5,
        "label": f"layer {place}",
    }
