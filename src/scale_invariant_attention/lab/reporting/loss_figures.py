"""Pictures of losses: against position in a document, and against an option of a scheme."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .figures import as_png, new_figure
from .losses import SeedRow
from .styles import style

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
