"""Figures of attention: against length, score quantiles, theory (entropy, transform), a diagnosis."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...analysis import Diagnosis
from ...schemes import ScaleInvariant, Scheme
from ..experiments.theory_numbers import TransformTable
from ..measurements import LengthAttention, Mean, ScoreMoments
from ..records import TrainingRecord
from .drawing import (
    MARKERS,
    Fit,
    Point,
    as_png,
    count_axis,
    draw_points,
    new_figure,
    straight_line,
    style,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGES = ((10, 100), (100, 1000))
PANELS = (
    "global entropy",
    *(f"entropy inside {a}-{b}" for a, b in RANGES),
    "share on the last 100 tokens",
)

# Schedules of Gaussian scores are drawn like the models that have them.
SCHEDULES = {"plain": "p-rope", "logn": "logn-p-rope", "scale-invariant": "scale-invariant-p-rope"}
SCHEDULE_TITLES = {"plain": "plain", "logn": "LogN, s = 0.4", "scale-invariant": "scale-invariant"}

# Quantile plots cover at least this many standard deviations in both directions.
REACH = 5.0
SHADES = ("#000000", "#0072b2", "#d55e00", "#009e73")
DASHES = ("-", "--", "-.", ":")
MARKER_SPACING = 8  # in quantiles

RATIO_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "marker": "o", "linestyle": "-"},
    {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    {"color": "#d55e00", "marker": "^", "linestyle": "-."},
    {"color": "#009e73", "marker": "D", "linestyle": ":"},
    {"color": "#aa4499", "marker": "v", "linestyle": "-"},
)

# Lines of one panel, by label.
Panel = dict[str, list[Point]]


def against_length_figure(
    gaussian: Mapping[str, Sequence[LengthAttention]], records: Iterable[TrainingRecord]
) -> "Figure":
    """Two rows of panels against context length: Gaussian scores above, trained models below.

    `gaussian` holds the theory's attention by schedule.
    """
    figure = new_figure(13, 6.2)
    upper, lower = figure.subplots(2, len(PANELS))
    above = {SCHEDULES[name]: rows for name, rows in gaussian.items()}
    below = {record.scheme: record.measured("attention") for record in records}
    titles = {SCHEDULES[name]: title for name, title in SCHEDULE_TITLES.items()}
    _draw_row(upper, above, titles)
    _draw_row(lower, below, {scheme: title_of(scheme) for scheme in below})
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


def _draw_row(
    row: Sequence[Any],
    by_scheme: Mapping[str, Sequence[LengthAttention]],
    titles: Mapping[str, str],
) -> None:
    panels = _panels(by_scheme)
    for axes, panel in zip(row, panels, strict=True):
        lengths = sorted({point.x for points in panels[0].values() for point in points})
        for scheme, points in panel.items():
            draw_points(axes, points, {**style(scheme), "label": titles[scheme]})
        axes.set_xscale("log", base=2)
        axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
        count_axis(axes.xaxis, lengths)
        axes.set_xlabel("context length")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)


def _panels(by_scheme: Mapping[str, Sequence[LengthAttention]]) -> list[Panel]:
    panels: list[Panel] = [{} for _ in PANELS]
    for scheme, by_length in by_scheme.items():
        for panel in panels:
            panel[scheme] = []
        for it in by_length:
            inside = (it.entropy_inside(start, stop) for start, stop in RANGES)
            for panel, value in zip(
                panels, (it.global_entropy, *inside, it.recent_share), strict=True
            ):
                if value is not None:
                    panel[scheme].append(Point(it.length, value.mean, value.standard_error))
    return panels


def heads_figure(record: TrainingRecord, length: int) -> "Figure":
    """Attention of every head by distance, one column per layer: its share, and how sparse it is.

    Lines are labelled with the tau of their head.
    """
    (attention,) = [it for it in record.measured("attention") if it.length == length]
    config = record.config.model_config()
    scheme = config.scheme
    if not isinstance(scheme, Scheme) or not isinstance(scheme.distance, ScaleInvariant):
        raise ValueError(f"the scheme must have a tau in every layer, got {record.scheme}")
    distance = scheme.distance
    taus = distance.tau_of_heads(config.heads)
    figure = new_figure(2.6 * len(attention.layers) + 1.4, 5.2)
    shares, parts = figure.subplots(
        2, len(attention.layers), sharex=True, sharey="row", squeeze=False
    )
    far = [index for index, (start, _) in enumerate(attention.ranges) if start > 0]
    middles = [math.sqrt(start * stop) for start, stop in (attention.ranges[i] for i in far)]
    for upper, lower, layer in zip(shares, parts, attention.layers, strict=True):
        for look, tau, share, entropy in zip(
            RATIO_STYLES, taus, layer.share, layer.entropy, strict=False
        ):
            look = {**look, "markersize": 4, "label": f"tau {tau:.3g}"}
            upper.plot(middles, [share[i] for i in far], **look)
            lower.plot(middles, [entropy[i] for i in far], **look)
        upper.set_title(f"layer {layer.layer}", fontsize=10)
        lower.set_xlabel("distance in tokens")
        for axes in (upper, lower):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    shares[0].set_ylabel("share of attention on the decade")
    parts[0].set_ylabel("entropy inside the decade, nats")
    handles = shares[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8, frameon=False, handlelength=3)
    return figure


def quantile_figure(record: TrainingRecord, length: int) -> "Figure":
    """Standardised quantiles of every head's scores against a Gaussian's, after and before rotary.

    There is a single row where nothing rotates, and where scores before rotary are unknown.
    """
    (attention,) = [it for it in record.measured("attention") if it.length == length]
    layers = attention.layers
    scores = [layer.scores for layer in layers]
    unrotated = [layer.unrotated_scores for layer in layers]
    rows = [("after rotary", scores), ("before rotary", unrotated)]
    if None in unrotated:
        rows = rows[:1]
    elif scores == unrotated:
        rows = [("nothing rotates", scores)]
    figure = new_figure(2.4 * len(layers) + 1.4, 0.8 + 2.3 * len(rows))
    grid = figure.subplots(len(rows), len(layers), sharex=True, sharey=True, squeeze=False)
    for line, (title, moments) in zip(grid, rows, strict=True):
        for axes, of_layer in zip(line, moments, strict=True):
            _draw_quantiles(axes, of_layer)
        line[0].set_ylabel(f"{title}\nquantiles of scores")
    for axes, layer in zip(grid[0], layers, strict=True):
        axes.set_title(f"layer {layer.layer}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("quantiles of N(0, 1)")
    # All panels share their axes, which must hold every line.
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


def _draw_quantiles(axes: Any, scores: ScoreMoments) -> None:
    normal = scores.normal_quantiles
    axes.plot([-3, 3], [-3, 3], color="0.6", linewidth=1, label="N(0, 1)")
    for head, (mean, variance, quantiles) in enumerate(
        zip(scores.mean, scores.variance, scores.quantiles, strict=True)
    ):
        spread = variance**0.5
        axes.plot(
            normal,
            [(it - mean) / spread for it in quantiles],
            color=SHADES[head % len(SHADES)],
            linestyle=DASHES[head % len(DASHES)],
            linewidth=1.2,
            marker=MARKERS[head % len(MARKERS)],
            markersize=4,
            # Staggered, so that overlapping heads remain distinguishable.
            markevery=(2 * head % MARKER_SPACING, MARKER_SPACING),
            label=f"head {head}",
        )
    low, high = (f(scores.variance) ** 0.5 for f in (min, max))
    axes.text(
        0.04,
        0.96,
        f"spread {low:.2f} to {high:.2f}\nmean {min(scores.mean):+.2f} to {max(scores.mean):+.2f}",
        transform=axes.transAxes,
        va="top",
        fontsize=7,
    )
    axes.grid(alpha=0.3)


def root_log(distance: float) -> float:
    """Square root of the natural logarithm."""
    return math.sqrt(math.log(distance))


def entropy_figure(
    entropies: Mapping[str, Mapping[int, Mean]],
    growth: Callable[[float], float],
    growth_name: str,
) -> tuple["Figure", dict[str, Fit]]:
    """Entropy inside ``[t, Delta t)`` against t, and against a growth of t with straight lines.

    Args:
        entropies: by Delta, then by t.
        growth: the horizontal axis of the right panel, such as `root_log`.
        growth_name: its label.

    Returns:
        The figure, and the line for each Delta.
    """
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2, sharey=True)
    fits = {}
    for look, (ratio, by_start) in zip(RATIO_STYLES, entropies.items(), strict=False):
        label = f"Delta = {ratio}"
        marks = {**look, "markersize": 4, "label": label}
        draw_points(left, _points(by_start, float), marks)
        straight = _points(by_start, growth)
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


def _points(by_start: Mapping[int, Mean], growth: Callable[[float], float]) -> list[Point]:
    return [Point(growth(start), it.mean, it.standard_error) for start, it in by_start.items()]


def transform_figure(transform: Mapping[str, TransformTable]) -> "Figure":
    """Gain, bias, expected weight and expected mass of a decade against distance, one line per tau."""
    figure = new_figure(13, 3.6)
    panels = figure.subplots(1, 4)
    columns: dict[str, Callable[[TransformTable], Sequence[float]]] = {
        "gain a_t": lambda table: table.gain,
        "bias m_t": lambda table: table.bias,
        "expected weight": lambda table: table.weight,
        "expected mass of [t, 10 t), over tau": lambda table: table.decade_mass,
    }
    for axes, (title, column) in zip(panels, columns.items(), strict=True):
        for look, (tau, table) in zip(RATIO_STYLES, transform.items(), strict=False):
            axes.plot(
                table.distance,
                column(table),
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


def draw_diagnosis(diagnosis: Diagnosis, *, title: str) -> bytes:
    """A PNG of a diagnosis, one line per layer, from dark to light."""
    figure = new_figure(11, 3.6)
    mass, sparsity, scores = figure.subplots(1, 3)
    for index, layer in enumerate(diagnosis.layers):
        look = _layer_style(index, len(diagnosis.layers), layer.layer)
        far = [it for it in layer.ranges if it.start > 0]
        middles = [math.sqrt(it.start * it.stop) for it in far]
        per_decade = [it.share / math.log10(it.stop / it.start) for it in far]
        mass.plot(middles, per_decade, **look)
        # A range that no query sees leaves a gap.
        parts = [math.nan if it.part is None else it.part for it in far]
        sparsity.plot(middles, parts, **look)
        low, high = layer.score_spreads
        scores.errorbar(
            [layer.layer],
            [layer.score_spread],
            yerr=[
                [max(0.0, layer.score_spread - low)],
                [max(0.0, high - layer.score_spread)],
            ],
            capsize=4,
            **{**look, "linestyle": "none"},
        )
    scores.plot(
        [layer.layer for layer in diagnosis.layers],
        [layer.score_mean for layer in diagnosis.layers],
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
    mass.set_title("share of attention per decade", fontsize=10)
    sparsity.set_title("fraction of tokens that receive it", fontsize=10)
    scores.axhline(1, color="0.5", linewidth=1, linestyle="--")
    scores.axhline(0, color="0.5", linewidth=1, linestyle=":")
    scores.set_title("scores: spread (bars: heads), mean (dash)", fontsize=10)
    scores.set_xlabel("layer")
    scores.set_xticks([layer.layer for layer in diagnosis.layers])
    for axes in (mass, sparsity, scores):
        axes.grid(alpha=0.3)
    figure.legend(
        *mass.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False
    )
    figure.suptitle(f"{title}, at {diagnosis.length:,} tokens", fontsize=11)
    return as_png(figure)


def _layer_style(index: int, count: int, layer: int) -> dict[str, Any]:
    """Darker for the first layers, and different markers, which greyscale prints need."""
    from matplotlib import colormaps

    shade = index / max(1, count - 1)
    return {
        "color": colormaps["viridis"](0.85 * shade),
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5,
        "label": f"layer {layer}",
    }
