"""The documentation page on speed and memory and its figures, from records alone."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from ..reporting.drawing import count_axis, new_figure
from ..reporting.pages import render
from .problem import DECODE, PASSES
from .records import ModelTiming, Ratio, Timing, held_to_targets
from .rivals import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The backend that is held to the targets when no ratios are recorded.
BACKEND = "cpu"

RATIO_FIGURE = "benchmark-ratio.png"
PEAK_FIGURE = "benchmark-peak.png"
DECODE_FIGURE = "benchmark-decode.png"


def page(
    origin: dict[str, str],
    timings: Sequence[Timing],
    ratio_origin: dict[str, str] | None = None,
    ratios: Sequence[Ratio] = (),
    model_origin: dict[str, str] | None = None,
    models: Sequence[ModelTiming] = (),
) -> str:
    """The page as Markdown."""
    backend = (ratio_origin or {}).get("backend", BACKEND)
    tables: dict[tuple[str, str], list[Timing]] = {}
    for row in sorted(timings, key=lambda row: (row.heads, row.length)):
        tables.setdefault((row.pass_name, row.shape), []).append(row)
    return render(
        "benchmark.md",
        origin=origin,
        figures=(RATIO_FIGURE, PEAK_FIGURE, DECODE_FIGURE),
        whole=any(row.pass_name != DECODE for row in timings),
        decode=any(row.pass_name == DECODE for row in timings),
        backend=backend,
        targets=[*held_to_targets(timings, backend), *ratios],
        models=models,
        tables=tables,
        sources={"attention": origin, "ratios": ratio_origin, "models": model_origin},
    )


class Style(NamedTuple):
    """Rivals differ in marker and line as well as in colour, for greyscale prints."""

    colour: str
    marker: str
    line: str


STYLES = {
    BASELINE: Style("black", "", "-"),
    "cpu": Style("#0072b2", "o", "-"),
    "tiled": Style("#d55e00", "s", "--"),
    "flex": Style("#009e73", "^", "-."),
    "eager": Style("#cc79a7", "D", ":"),
}
OTHERS = (Style("#56b4e9", "v", "--"), Style("#e69f00", "P", "-."))


class Quantity(NamedTuple):
    """The label of an axis, and its median, lower and upper quartile for a row."""

    label: str
    spread: Callable[[Timing], tuple[float, float, float]]


TIME = Quantity(
    "time relative to SDPA", lambda row: (row.ratio_to_sdpa, row.ratio_low, row.ratio_high)
)
PEAK = Quantity("share of peak arithmetic", lambda row: row.with_quartiles(row.share_of_peak))
BANDWIDTH = Quantity(
    "share of read bandwidth", lambda row: row.with_quartiles(row.share_of_bandwidth or 0.0)
)


class Panel(NamedTuple):
    """One set of axes: rows, and the quantity shown."""

    title: str
    rows: Sequence[Timing]
    quantity: Quantity


def draw(origin: dict[str, str], rows: Sequence[Timing], folder: Path) -> list[Path]:
    """Draw the figures that there are rows for into a folder; returns their paths."""
    whole = [row for row in rows if row.pass_name != DECODE]
    decode = [row for row in rows if row.pass_name == DECODE]
    panels = {
        RATIO_FIGURE: _by_shape_and_pass(whole, TIME),
        PEAK_FIGURE: _by_shape_and_pass(whole, PEAK),
        DECODE_FIGURE: [
            [panel for line in _by_shape_and_pass(decode, quantity) for panel in line]
            for quantity in (TIME, BANDWIDTH)
        ],
    }
    figures = {folder / name: _figure(origin, grid) for name, grid in panels.items() if any(grid)}
    folder.mkdir(parents=True, exist_ok=True)
    for path, figure in figures.items():
        figure.savefig(path, dpi=200)
    return list(figures)


def _by_shape_and_pass(rows: Sequence[Timing], quantity: Quantity) -> list[list[Panel]]:
    """One line of panels per shape, one panel per pass."""
    shapes = dict.fromkeys(row.shape for row in sorted(rows, key=lambda row: row.heads))
    passes = [name for name in PASSES if any(row.pass_name == name for row in rows)]
    return [
        [
            Panel(
                f"{shape.replace('x', ' heads of ')}, {pass_name}",
                [row for row in rows if (row.shape, row.pass_name) == (shape, pass_name)],
                quantity,
            )
            for pass_name in passes
        ]
        for shape in shapes
    ]


def _figure(origin: dict[str, str], grid: list[list[Panel]]) -> "Figure":
    width = max(len(line) for line in grid)
    result = new_figure(max(2, width) * 3.9, len(grid) * 3 + 1.4)
    axes = result.subplots(len(grid), width, sharex=True, sharey="row", squeeze=False)
    rows = [row for line in grid for panel in line for row in panel.rows]
    styles = _styles(rows)
    for panels, line in zip(grid, axes, strict=True):
        for panel, one in zip(panels, line, strict=True):
            one.set_title(panel.title, fontsize=10)
            _draw(one, panel, styles)
            one.label_outer()
        quantity = panels[0].quantity
        line[0].set_ylabel(quantity.label)
        _scale(line[0], [p for other in grid for p in other if p.quantity is quantity])
    axes[0, 0].set_xscale("log", base=2)
    count_axis(axes[0, 0].xaxis, sorted({row.length for row in rows}))
    for one in axes[-1]:
        one.set_xlabel("keys in the cache" if rows[0].pass_name == DECODE else "length in tokens")
    handles = {
        label: handle
        for one in axes.flat
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True)
    }
    result.legend(
        [handles[name] for name in styles],
        list(styles),
        loc="outside upper center",
        ncols=len(styles),
        frameon=False,
        handlelength=3,
    )
    result.supxlabel(_caption(origin, rows[0].pass_name == DECODE), fontsize=7.5, color="0.35")
    return result


def _styles(rows: Sequence[Timing]) -> dict[str, Style]:
    """The styles of the rivals, the same in every figure."""
    present = dict.fromkeys(row.rival for row in rows)
    known = {name: style for name, style in STYLES.items() if name in present}
    others = [name for name in present if name not in STYLES]
    return known | dict(zip(others, cycle(OTHERS), strict=False))


def _draw(axes: "Axes", panel: Panel, styles: dict[str, Style]) -> None:
    axes.grid(axis="y", alpha=0.3)
    for name, style in styles.items():
        mine = sorted((row for row in panel.rows if row.rival == name), key=lambda row: row.length)
        if not mine:
            continue
        if name == BASELINE and panel.quantity is TIME:
            axes.axhline(1, color=style.colour, linewidth=1.2, label=name)
            continue
        lengths = [row.length for row in mine]
        median, low, high = zip(*map(panel.quantity.spread, mine), strict=True)
        axes.fill_between(lengths, low, high, color=style.colour, alpha=0.2, linewidth=0)
        axes.plot(
            lengths,
            median,
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            linewidth=1.2 if name == BASELINE else 1.5,
            markersize=5,
            label=name,
        )


def _scale(axes: "Axes", panels: Sequence[Panel]) -> None:
    """Scale the vertical axis of a line of panels, alike for all panels of a quantity."""
    spreads = [panel.quantity.spread(row) for panel in panels for row in panel.rows]
    lowest, highest = min(low for _, low, _ in spreads), max(high for *_, high in spreads)
    if panels[0].quantity is not TIME:
        axes.set_ylim(0, max(1.0, 1.05 * highest))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        return
    axes.set_yscale("log", base=2)
    ratios = (0.25, 0.5, 0.7, 0.85, 1, 1.5, 2, 3, 4, 8, 16, 32, 64, 128)
    axes.set_yticks(ratios, [f"{ratio:g} ×" for ratio in ratios])  # noqa: RUF001
    axes.minorticks_off()
    axes.set_ylim(min(0.8, lowest) / 1.1, max(2.0, highest) * 1.1)


def _caption(origin: dict[str, str], decode: bool) -> str:
    """Title, and the machine, versions and commit of the measurements."""
    what = "One query against a cache" if decode else "Causal attention"
    how = f"{what}, batch 1, float32. Medians over rounds; the bands are quartiles."
    whence = (
        f"{origin['cpu']}, {origin['threads']} threads; scale-invariant-attention "
        f"{origin['version']}, commit {origin['commit'][:12]}; torch {origin['torch']}, "
        f"Python {origin['python']}; {origin['date'][:10]}."
    )
    return "\n".join((fill(how, 125), fill(whence, 125)))
