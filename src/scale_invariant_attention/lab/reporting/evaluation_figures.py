"""Figures of trained models: loss by position, by option and through training, and needles found."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from .drawing import Point, as_png, draw_points, new_figure, style
from .losses import Record, SeedRow, Spread, scheme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A row of losses by position, as it is recorded: start, stop, loss, standard_error.
PositionRow = Mapping[str, Any]

# The first tokens of a document are hard for every scheme, and would take up the whole height.
COMPARED_FROM = 16


def draw_loss_by_position(
    by_scheme: Mapping[str, Sequence[PositionRow]], *, title: str, train_length: int | None = None
) -> bytes:
    """A PNG of the loss of each scheme against position, with the trained length.

    Standard errors, over documents, are drawn for a single scheme: those of several are nearly the
    same, as the documents are, and say nothing of the differences. Several are compared from a position
    on at which losses are of one size.
    """
    several = len(by_scheme) > 1
    figure = new_figure(8, 4.5) if several else new_figure()
    axes = figure.subplots()
    for scheme, all_rows in by_scheme.items():
        look = style(scheme)
        rows = [row for row in all_rows if row["start"] >= COMPARED_FROM or not several]
        middles = [middle(row) for row in rows]
        losses = [row["loss"] for row in rows]
        axes.plot(middles, losses, **look)
        if not several:
            errors = [row["standard_error"] or 0.0 for row in rows]
            low = [loss - error for loss, error in zip(losses, errors, strict=True)]
            high = [loss + error for loss, error in zip(losses, errors, strict=True)]
            axes.fill_between(middles, low, high, color=look["color"], alpha=0.2, linewidth=0)
    if train_length is not None:
        _mark_trained_length(axes, train_length)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda position, _: f"{position:,.0f}")
    axes.set_xlabel("tokens before the predicted one, in its document")
    axes.set_ylabel("loss in nats")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    if several:
        # Long enough for the longest dash that a style has, or lines look alike here.
        figure.legend(loc="outside right upper", fontsize=8, handlelength=4, frameon=False)
    return as_png(figure)


def draw_sweep(
    option: str, rows: Mapping[float, SeedRow], *, title: str, train_length: int
) -> bytes:
    """A PNG of :func:`sweep_figure`."""
    return as_png(sweep_figure(option, rows, title=title, train_length=train_length))


def sweep_figure(
    option: str, rows: Mapping[float, SeedRow], *, title: str, train_length: int
) -> "Figure":
    """The loss against the value of an option, a line for each length of context."""
    figure = new_figure()
    axes = figure.subplots()
    values = sorted(rows)
    lengths = list(rows[values[0]].spreads)
    greys = ("#000000", "#d55e00", "#0072b2", "#009e73")
    lines = zip(lengths, ("o", "s", "^", "D"), ("-", "--", "-.", ":"), greys, strict=False)
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


def middle(row: PositionRow) -> float:
    """The position at which to draw a bin: its middle on an axis of logarithms."""
    return float((row["start"] * (row["stop"] - 1)) ** 0.5)


def _mark_trained_length(axes: Any, length: int) -> None:
    axes.axvline(length, color="0.5", linestyle="--", linewidth=1)
    axes.annotate(
        " trained length",
        (length, 0.98),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=8,
        color="0.35",
    )


# Of the losses of single steps, which are drawn as the mean of those around them.
SMOOTHED_STEPS = 25
MARKED_STEPS = 100
# Before it all schemes fall alike, from a height at which differences could not be seen.
FIRST_STEP = 50


def training_figure(records: Iterable[Record], schemes: Sequence[str]) -> "Figure":
    """Panels of the loss in training, and in validation at each length, by step; means over seeds."""
    by_scheme: dict[str, list[Record]] = {scheme: [] for scheme in schemes}
    for record in records:
        if scheme_of(record) in by_scheme:
            by_scheme[scheme_of(record)].append(record)
    first = next(iter(by_scheme.values()))[0]
    lengths = list(first["validation"][-1]["validation"])
    figure = new_figure(13, 3.8)
    panels = figure.subplots(1, 1 + len(lengths))
    for place, (scheme, mine) in enumerate(by_scheme.items()):
        look = style(scheme)
        # Markers now and then, each scheme's at steps of its own: lines may lie on each other.
        apart = MARKED_STEPS * place // len(by_scheme)
        panels[0].plot(*_training(mine), **look, markevery=(apart, MARKED_STEPS))
        for axes, length in zip(panels[1:], lengths, strict=True):
            draw_points(axes, _validation(mine, length), look)
    trained = first["config"]["length"]
    panels[0].set_title(f"training, {trained:,} tokens", fontsize=10)
    for axes, length in zip(panels[1:], lengths, strict=True):
        times = int(length) // trained
        beyond = "" if times == 1 else f" ({times} times)"
        axes.set_title(f"validation, {int(length):,} tokens{beyond}", fontsize=10)
        steps = [line["step"] for line in first["validation"] if line["step"] >= FIRST_STEP]
        axes.set_xticks(steps)
    for axes in panels:
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss in nats")
    handles = panels[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8, handlelength=4, frameon=False)
    return figure


def _training(records: Sequence[Record]) -> tuple[list[int], list[float]]:
    """Steps, and the loss around each, over seeds."""
    losses = [
        mean(at_step)
        for at_step in zip(*(record["training"]["loss"] for record in records), strict=True)
    ]
    reach = SMOOTHED_STEPS // 2
    steps = range(FIRST_STEP, len(losses) - reach)
    return list(steps), [mean(losses[max(0, s - reach) : s + reach + 1]) for s in steps]


def _validation(records: Sequence[Record], length: str) -> list[Point]:
    by_step: dict[int, list[float]] = {}
    for record in records:
        for line in record["validation"]:
            validation: Mapping[str, float] = line["validation"]
            if line["step"] >= FIRST_STEP and length in validation:
                by_step.setdefault(line["step"], []).append(validation[length])
    spreads = {step: Spread.of(losses) for step, losses in by_step.items()}
    return [Point(step, it.mean, it.standard_error) for step, it in spreads.items()]


# A row of a table of needles, as it is recorded: length, start, stop, found, count.
Cell = Mapping[str, Any]


def draw_needles(cells: Sequence[Cell], *, title: str, train_length: int | None = None) -> bytes:
    """A PNG of the share of needles found: lengths to the right, depths downwards.

    Depth 0 is the start of the context. Every cell says its share in figures; cells in which no needle
    lay are left white.
    """
    lengths = sorted({cell["length"] for cell in cells})
    edges = sorted({(cell["start"], cell["stop"]) for cell in cells})
    figure = new_figure(2.2 + 0.9 * len(lengths), 1.6 + 0.34 * len(edges))
    axes = figure.subplots()
    shares = {
        (cell["length"], (cell["start"], cell["stop"])): cell["found"] / cell["count"]
        for cell in cells
    }
    grid = [[shares.get((length, edge), float("nan")) for length in lengths] for edge in edges]
    # Lightness rises with the share, so that it can be read in greyscale too.
    image = axes.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for row, line in enumerate(grid):
        for column, share in enumerate(line):
            if not math.isnan(share):
                colour = "black" if share > 0.5 else "white"
                axes.text(
                    column, row, f"{share:.2f}", ha="center", va="center", color=colour, fontsize=7
                )
    axes.set_xticks(range(len(lengths)), [_length(length, train_length) for length in lengths])
    axes.set_yticks(range(len(edges)), [f"{start:.0%}-{stop:.0%}" for start, stop in edges])
    axes.tick_params(labelsize=8)
    axes.set_xlabel("tokens in all", fontsize=9)
    axes.set_ylabel("depth of the needle", fontsize=9)
    axes.set_title(title, fontsize=9)
    bar = figure.colorbar(image, ax=axes, label="share found")
    bar.ax.tick_params(labelsize=8)
    return as_png(figure)


def _length(length: int, train_length: int | None) -> str:
    return f"{length:,}" + ("\n(trained)" if length == train_length else "")
