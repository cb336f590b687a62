"""Draw the results of benchmark_attention.py: ratio to SDPA against length.

python benchmarks/plot_attention.py results.csv -o attention.png
"""

from argparse import ArgumentParser
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results import Row, read_results
from rivals import BASELINE


class Style(NamedTuple):
    """Rivals differ in marker and line as well as in colour, for those who print in grey."""

    colour: str
    marker: str
    line: str


STYLES = (
    Style("#0072b2", "o", "-"),
    Style("#d55e00", "s", "--"),
    Style("#009e73", "^", "-."),
    Style("#cc79a7", "D", ":"),
)


def figure(origin: dict[str, str], rows: list[Row]) -> Figure:
    """A panel for each shape and pass, a line with its quartile band for each rival."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    passes = list(dict.fromkeys(row.pass_name for row in rows))
    names = [name for name in dict.fromkeys(row.rival for row in rows) if name != BASELINE]
    # SDPA is the line at 1, whatever its own rows say.
    styles = dict(zip(names, cycle(STYLES), strict=False))
    size = (max(2, len(passes)) * 3.6, len(shapes) * 2.6 + 1.4)
    result = Figure(figsize=size, layout="constrained")
    grid = result.subplots(len(shapes), len(passes), sharex=True, sharey=True, squeeze=False)
    for shape, panels in zip(shapes, grid, strict=True):
        for pass_name, axes in zip(passes, panels, strict=True):
            here = [row for row in rows if (row.shape, row.pass_name) == (shape, pass_name)]
            heads, _, head_dim = shape.partition("x")
            axes.set_title(f"{heads} heads of {head_dim}, {pass_name}", fontsize=10)
            axes.label_outer()
            _draw(axes, here, styles)
    _scale(grid[0, 0], rows)
    for axes in grid[-1]:
        axes.set_xlabel("length in tokens")
    for axes in grid[:, 0]:
        axes.set_ylabel("time relative to SDPA")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    result.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    result.supxlabel(_caption(origin), fontsize=7.5, color="0.35")
    return result


def _draw(axes: Axes, rows: list[Row], styles: dict[str, Style]) -> None:
    axes.axhline(1, color="black", linewidth=1, label="SDPA")
    axes.axhline(2, color="0.6", linewidth=1, linestyle=(0, (1, 2)))
    for name, style in styles.items():
        mine = sorted((row for row in rows if row.rival == name), key=lambda row: row.length)
        lengths = [row.length for row in mine]
        low, high = [row.ratio_low for row in mine], [row.ratio_high for row in mine]
        axes.fill_between(lengths, low, high, color=style.colour, alpha=0.2, linewidth=0)
        axes.plot(
            lengths,
            [row.ratio_to_sdpa for row in mine],
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            markersize=5,
            label=name,
        )


def _scale(axes: Axes, rows: list[Row]) -> None:
    """Both axes by powers of two, for all panels: they share them."""
    lengths = sorted({row.length for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [_in_words(length) for length in lengths])
    axes.set_yscale("log", base=2)
    lowest = min(0.8, *(row.ratio_low for row in rows))
    highest = max(2.5, *(row.ratio_high for row in rows))
    ratios = [ratio / 4 for ratio in (1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 256)]
    axes.set_yticks(ratios, [f"{ratio:g} ×" for ratio in ratios])  # noqa: RUF001
    axes.minorticks_off()
    axes.set_ylim(lowest / 1.1, highest * 1.1)


def _in_words(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _caption(origin: dict[str, str]) -> str:
    """What the figures are, and the machine, versions and commit they come from."""
    what = (
        "Causal attention, batch 1, float32. Medians of the ratios within rounds; the bands are "
        "their quartiles."
    )
    whence = (
        f"{origin['cpu']}, {origin['threads']} threads; scale-invariant-attention "
        f"{origin['version']}, commit {origin['commit'][:12]}; torch {origin['torch']}, "
        f"Python {origin['python']}; {origin['date'][:10]}."
    )
    return "\n".join((fill(what, 125), fill(whence, 125)))


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the CSV of benchmark_attention.py")
    parser.add_argument("-o", "--output", type=Path, default=Path("attention.png"))
    options = parser.parse_args()
    figure(*read_results(options.results)).savefig(options.output, dpi=200)
