"""The demo's figure: where attention goes as the context grows, and by decade of distance."""

from pathlib import Path
from typing import Any

from .demo import ALIBI, LOGN, PLAIN, SCALE_INVARIANT, DecadeMasses, RecentShares

# Colours told apart by colour-blind readers, line styles and markers by a greyscale printer.
_STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": "#555555", "linestyle": "-", "marker": "o", "markersize": 9},
    LOGN: {"color": "#d55e00", "linestyle": "--", "marker": "x", "markersize": 7},
    ALIBI: {"color": "#009e73", "linestyle": ":", "marker": "^", "markersize": 7},
    SCALE_INVARIANT: {"color": "#0072b2", "linestyle": "-", "marker": "D", "linewidth": 2.5},
}

# What an axis of masses leaves out: ALiBi's far decades are nothing on any axis.
_LEAST_MASS = 0.3


def draw(shares: RecentShares, decades: DecadeMasses, path: Path) -> None:
    """Write both panels to `path`; the ending of its name sets the format."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'the figure needs matplotlib; pip install "scale-invariant-attention[plots]" adds it',
            name=missing.name,
        ) from missing

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    near, far = figure.subplots(1, 2)
    _draw_shares(near, shares)
    _draw_decades(far, decades)
    entries = {
        label: handle
        for axes in (near, far)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [entries[scheme] for scheme in _STYLES],
        list(_STYLES),
        loc="outside lower center",
        ncols=len(_STYLES),
        frameon=False,
        handlelength=4,
    )
    figure.savefig(path, dpi=150)


def _draw_shares(axes: Any, shares: RecentShares) -> None:
    for scheme, estimates in shares.shares.items():
        axes.errorbar(
            shares.lengths,
            [100 * estimate.mean for estimate in estimates],
            yerr=[100 * estimate.standard_error for estimate in estimates],
            label=scheme,
            capsize=3,
            markerfacecolor="none" if scheme == PLAIN else None,
            **_STYLES[scheme],
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.05, 100)
    axes.set_xticks(shares.lengths, [f"{length:,}" for length in shares.lengths])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1%", "1%", "10%", "100%"])
    axes.set_xlabel("context length in tokens")
    axes.set_ylabel("share of attention")
    axes.set_title(f"What the nearest {shares.recent} tokens keep")
    axes.grid(alpha=0.3)


def _draw_decades(axes: Any, decades: DecadeMasses) -> None:
    places = range(len(decades.starts))
    for scheme, masses in decades.masses.items():
        axes.plot(
            places,
            masses,
            label=scheme,
            markerfacecolor="none" if scheme == PLAIN else None,
            **_STYLES[scheme],
        )
    axes.set_yscale("log")
    axes.set_ylim(bottom=_LEAST_MASS)
    axes.set_xticks(places, [f"{start:,}-{10 * start - 1:,}" for start in decades.starts])
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("distance in tokens")
    axes.set_ylabel("expected weight before normalisation")
    axes.set_title("What each decade of distances gets")
    axes.grid(alpha=0.3)
