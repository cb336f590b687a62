"""The section on how trainings went: the loss of batches, and of validation at each length."""

import math
from collections.abc import Iterator, Sequence

from .comparisons import Comparison, comparisons
from .entries import Entry, Row
from .loss_sections import LOSS
from .parts import Axis, Block, Chart, Line, Panel, Section
from .variants import Variant, title_of

# Points of a line: what a screen can show of it.
POINTS = 250


def training_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Losses by step, where anything has been trained."""
    found = [it for it in comparisons(entries, "training") if _has_steps(it)]
    if not found:
        return
    blocks = [_block(it, f"training-{number}") for number, it in enumerate(found)]
    others = dict.fromkeys(
        title_of(it.scheme) for it in entries if it.trained_as and "attention" not in it.measured
    )
    if others:
        text = f"{', '.join(others)}: read with the weights of another training, which Runs names."
        blocks.append(Block("", [text]))
    yield Section("training", "Training", blocks)


def _has_steps(comparison: Comparison) -> bool:
    return any(it.measured["training"].rows for v in comparison.variants for it in v.entries)


def _block(comparison: Comparison, name: str) -> Block:
    on = comparison.on
    title = f"{on['data']}, task {on['task']}"
    panels = [
        Panel("training batches", [_line(it, "training", None) for it in comparison.variants])
    ]
    lengths = {
        row["length"]
        for variant in comparison.variants
        for entry in variant.entries
        for row in _rows(entry, "validation")
    }
    trained = comparison.trained_length
    for length in sorted(lengths):
        label = f"validation at {length:,}" + (" (trained)" if length == trained else "")
        lines = [_line(it, "validation", length) for it in comparison.variants]
        panels.append(Panel(label, lines))
    labels = ", ".join(variant.label for variant in comparison.variants)
    chart = Chart(
        name,
        f"Loss by step: {title}",
        f"Line chart of the loss against the step of training for {labels}.",
        Axis("step"),
        LOSS,
        panels,
        note=f"Mean over {comparison.seeds}. A point of a long curve is the mean of the steps near it.",
    )
    swept = sorted({f"{sweep.option}" for sweep in comparison.sweeps})
    text = f"Without the other values of {' and '.join(swept)}." if swept else ""
    return Block(title, [text] if text else [], [], [chart])


def _line(variant: Variant, kind: str, length: int | None) -> Line:
    by_step: dict[int, list[float]] = {}
    for entry in variant.entries:
        for row in _rows(entry, kind):
            if length is None or row["length"] == length:
                by_step.setdefault(row["step"], []).append(row["loss"])
    means = [(step, sum(losses) / len(losses)) for step, losses in sorted(by_step.items())]
    width = math.ceil(len(means) / POINTS) or 1
    bins = [means[first : first + width] for first in range(0, len(means), width)]
    return Line(
        variant.label,
        [sum(step for step, _ in mine) / len(mine) for mine in bins],
        [_finite(sum(loss for _, loss in mine) / len(mine)) for mine in bins],
    )


def _rows(entry: Entry, kind: str) -> Sequence[Row]:
    return entry.measured[kind].rows if kind in entry.measured else ()


def _finite(loss: float) -> float | None:
    """A loss that a chart can show; a gap where there is none."""
    return loss if math.isfinite(loss) else None
