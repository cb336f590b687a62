"""The picture of a diagnosis: attention by distance, how sparse it is, and the scores of each layer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import as_png, new_figure
from .styles import MARKERS


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
