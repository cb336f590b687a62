"""The picture that needle tests are known by: what was found, by context length and depth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import as_png, new_figure

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
