"""Losses through training: of every step, and of validation at every length."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from .curves import Point, draw_points
from .figures import new_figure
from .losses import Record, Spread, scheme_of
from .styles import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
