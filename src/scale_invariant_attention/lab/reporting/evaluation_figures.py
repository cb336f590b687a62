"""Figures of trained models: loss by position, by option and through training, and needles found."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from ...evaluation import PositionLoss
from ..measurements import NeedleCell
from ..records import TrainingRecord
from ..seeds import SeedRow, Spread
from .drawing import Point, as_png, draw_points, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The first tokens of a document are hard for every scheme, and would take up the whole height.
COMPARED_FROM = 16

# Losses of single steps are drawn as running means over this many steps.
SMOOTHED_STEPS = 25
MARKED_STEPS = 100
# Before this step all schemes fall alike, from a height that would hide their differences.
FIRST_STEP = 50
MOST_TICKS = 6
# Height of the figure of training curves, in nats above the lowest loss.
CURVES_SPAN = 0.7


def draw_loss_by_position(
    by_scheme: Mapping[str, Sequence[PositionLoss]], *, title: str, train_length: int | None = None
) -> bytes:
    """A PNG of the loss of each scheme against position, with the training length marked.

    A single scheme is drawn with its standard errors over documents. Several are drawn without: their
    documents are the same, so these errors do not apply to the differences. Several are compared from
    a position at which their losses are of similar size.
    """
    several = len(by_scheme) > 1
    figure = new_figure(8, 4.5) if several else new_figure()
    axes = figure.subplots()
    for scheme, all_rows in by_scheme.items():
        look = style(scheme)
        rows = [row for row in all_rows if row.start >= COMPARED_FROM or not several]
        middles = [middle(row) for row in rows]
        losses = [row.loss for row in rows]
        axes.plot(middles, losses, **look)
        if not several:
            errors = [row.standard_error or 0.0 for row in rows]
            low = [loss - error for loss, error in zip(losses, errors, strict=True)]
            high = [loss + error for loss, error in zip(losses, errors, strict=True)]
            axes.fill_between(middles, low, high, color=look["color"], alpha=0.2, linewidth=0)
    if train_length is not None:
        _mark_train_length(axes, train_length)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda position, _: f"{position:,.0f}")
    axes.set_xlabel("tokens before the predicted one, in its document")
    axes.set_ylabel("loss in nats")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    if several:
        # Long enough for the longest dash of a style, or lines look alike here.
        figure.legend(loc="outside right upper", fontsize=8, handlelength=4, frameon=False)
    return as_png(figure)


def middle(row: PositionLoss) -> float:
    """The position at which to draw a bin: its middle on a logarithmic axis."""
    return float((row.start * (row.stop - 1)) ** 0.5)


def _mark_train_length(axes: Any, length: int) -> None:
    axes.axvline(length, color="0.5", linestyle="--", linewidth=1)
    axes.annotate(
        " training length",
        (length, 0.98),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=8,
        color="0.35",
    )


def sweep_figure(
    option: str, rows: Mapping[float, SeedRow], *, title: str, train_length: int
) -> "Figure":
    """The loss against the value of an option, one line per context length."""
    figure = new_figure()
    axes = figure.subplots()
    values = sorted(rows)
    lengths = list(rows[values[0]].spreads)
    colours = ("#000000", "#d55e00", "#0072b2", "#009e73")
    lines = zip(lengths, ("o", "s", "^", "D"), ("-", "--", "-.", ":"), colours, strict=False)
    for length, marker, line, colour in lines:
        times = length // train_length
        spreads = [rows[value].spreads[length] for value in values]
        axes.errorbar(
            values,
            [spread.mean for spread in spreads],
            yerr=[spread.standard_error or 0.0 for spread in spreads],
            marker=marker,
            linestyle=line,
            color=colour,
            capsize=3,
            label=f"{length:,} tokens"
            + (", as trained" if times == 1 else f", {times} times that"),
        )
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(option)
    axes.set_ylabel("loss in nats")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, handlelength=4)
    return figure


def training_figure(records: Iterable[TrainingRecord], schemes: Sequence[str]) -> "Figure":
    """Loss against step, means over seeds: one panel for training, one per validation length."""
    by_scheme = _by_scheme(records, schemes)
    first = next(iter(by_scheme.values()))[0]
    validations = first.measured("validation")
    lengths: list[int] = list(validations[-1].validation)
    figure = new_figure(13, 3.8)
    panels = figure.subplots(1, 1 + len(lengths))
    for index, (scheme, seeds) in enumerate(by_scheme.items()):
        look = style(scheme)
        # Sparse markers, at different steps for each scheme: lines may lie on top of each other.
        offset = MARKED_STEPS * index // len(by_scheme)
        panels[0].plot(*_training(seeds), **look, markevery=(offset, MARKED_STEPS))
        for axes, length in zip(panels[1:], lengths, strict=True):
            draw_points(axes, _validation(seeds, length), look)
    train_length = first.config.length
    panels[0].set_title(f"training, {train_length:,} tokens", fontsize=10)
    for axes, length in zip(panels[1:], lengths, strict=True):
        times = length // train_length
        beyond = "" if times == 1 else f" ({times} times)"
        axes.set_title(f"validation, {length:,} tokens{beyond}", fontsize=10)
        steps = [it.step for it in validations if it.step >= FIRST_STEP]
        axes.set_xticks(steps[:: 1 + len(steps) // MOST_TICKS])
    for axes in panels:
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss in nats")
    handles = panels[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8, handlelength=4, frameon=False)
    return figure


def curves_figure(records: Iterable[TrainingRecord], schemes: Sequence[str]) -> "Figure":
    """Training loss against step, means over seeds; schemes far above the others leave the figure."""
    by_scheme = _by_scheme(records, schemes)
    figure = new_figure(10, 4.5)
    axes = figure.subplots()
    drawn = (loss for seeds in by_scheme.values() for loss in _training(seeds)[1])
    lowest = min(drawn, default=0.0)
    for index, (scheme, seeds) in enumerate(by_scheme.items()):
        steps, losses = _training(seeds)
        offset = 2 * MARKED_STEPS * index // len(by_scheme)
        axes.plot(steps, losses, **style(scheme), markevery=(offset, 2 * MARKED_STEPS))
    axes.set_ylim(lowest - 0.02, lowest + CURVES_SPAN)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss in nats")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8, handlelength=4, frameon=False)
    return figure


def _by_scheme(
    records: Iterable[TrainingRecord], schemes: Sequence[str]
) -> dict[str, list[TrainingRecord]]:
    by_scheme: dict[str, list[TrainingRecord]] = {scheme: [] for scheme in schemes}
    for record in records:
        if record.scheme in by_scheme:
            by_scheme[record.scheme].append(record)
    return by_scheme


def _training(records: Sequence[TrainingRecord]) -> tuple[list[int], list[float]]:
    """Steps, and the smoothed loss at each, over seeds."""
    losses = [mean(at_step) for at_step in zip(*(it.training.loss for it in records), strict=True)]
    reach = SMOOTHED_STEPS // 2
    steps = range(FIRST_STEP, len(losses) - reach)
    return list(steps), [mean(losses[max(0, s - reach) : s + reach + 1]) for s in steps]


def _validation(records: Sequence[TrainingRecord], length: int) -> list[Point]:
    by_step: dict[int, list[float]] = {}
    for record in records:
        for it in record.measured("validation"):
            if it.step >= FIRST_STEP and length in it.validation:
                by_step.setdefault(it.step, []).append(it.validation[length])
    spreads = {step: Spread.over(losses) for step, losses in by_step.items()}
    return [Point(step, it.mean, it.standard_error) for step, it in spreads.items()]


def draw_needles(
    cells: Sequence[NeedleCell], *, title: str, train_length: int | None = None
) -> bytes:
    """A PNG of the share of needles found: lengths to the right, depths downwards.

    Depth 0 is the start of the context. Every cell shows its share as a number; cells without any
    needle are white.
    """
    lengths = sorted({cell.length for cell in cells})
    edges = sorted({(cell.start, cell.stop) for cell in cells})
    figure = new_figure(2.2 + 0.9 * len(lengths), 1.6 + 0.34 * len(edges))
    axes = figure.subplots()
    shares = {(cell.length, (cell.start, cell.stop)): cell.share for cell in cells}
    grid = [[shares.get((length, edge), math.nan) for length in lengths] for edge in edges]
    # Lightness rises with the share, so that greyscale prints can be read too.
    image = axes.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for row, line in enumerate(grid):
        for column, share in enumerate(line):
            if not math.isnan(share):
                colour = "black" if share > 0.5 else "white"
                axes.text(
                    column, row, f"{share:.2f}", ha="center", va="center", color=colour, fontsize=7
                )
    ticks = [
        f"{length:,}" + ("\n(trained)" if length == train_length else "") for length in lengths
    ]
    axes.set_xticks(range(len(lengths)), ticks)
    axes.set_yticks(range(len(edges)), [f"{start:.0%}-{stop:.0%}" for start, stop in edges])
    axes.tick_params(labelsize=8)
    axes.set_xlabel("tokens in all", fontsize=9)
    axes.set_ylabel("depth of the needle", fontsize=9)
    axes.set_title(title, fontsize=9)
    bar = figure.colorbar(image, ax=axes, label="share found")
    bar.ax.tick_params(labelsize=8)
    return as_png(figure)
