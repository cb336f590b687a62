"""The sections on loss: by length, against a swept option, by position and through training."""

import math
from collections.abc import Iterator, Sequence

from ..evaluation_figures import COMPARED_FROM, middle
from .comparisons import (
    Comparison,
    best_by_length,
    by_label,
    comparisons,
    described,
    length_lines,
    length_table,
)
from .entries import Entry, Row, Sweep, Variant, title_of
from .parts import Axis, Block, Chart, Line, Panel, Section, further_look

LOSS = Axis("loss in nats a token")


def loss_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Loss by length, if it was measured."""
    found = comparisons(entries, "losses")
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        blocks.append(_by_length(comparison, f"loss-{number}"))
        blocks += [
            _swept(comparison, sweep, f"loss-{number}-{sweep.scheme}-{sweep.option}")
            for sweep in comparison.sweeps
        ]
    best = [text for it in found if (text := best_by_length(it, _loss, min))]
    finding = f"Lowest loss: {'. '.join(best)}." if best else ""
    yield Section("losses", "Loss by context length", blocks, finding)


def position_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Loss by position, if it was measured."""
    found = [it for it in comparisons(entries, "positions") if it.on["documents"]]
    if not found:
        return
    blocks = [_by_position(it, f"position-{number}") for number, it in enumerate(found)]
    yield Section("positions", "Loss by position", blocks)


def _loss(row: Row) -> float:
    return float(row["loss"])


def _by_length(comparison: Comparison, name: str) -> Block:
    variants = by_label(comparison.variants)
    table = length_table(
        comparison,
        variants,
        _loss,
        min,
        caption=f"Loss in nats a token by context length, {comparison.over_seeds}; the lowest of each "
        f"column is marked",
        head="scheme",
    )
    text = [f"The same tokens at every length: {described(comparison.on)}. Lower is better."]
    best = best_by_length(comparison, _loss, min)
    chart = Chart(
        name,
        "Loss by context length",
        _alternative(comparison, "loss against context length", best and f"Lowest: {best}."),
        Axis("context length in tokens", log=True, base=2),
        LOSS,
        [Panel("", length_lines(comparison, _loss))],
        trained_mark(comparison),
        note="Bars are standard errors over seeds.",
    )
    charts = [chart] if len(comparison.lengths()) > 1 else []
    return Block("", text, [table], charts)


def _swept(comparison: Comparison, sweep: Sweep, name: str) -> Block:
    """Only the seeds that all values have: others could not be compared."""
    common = set.intersection(*({e.seed for e in it.entries} for it in sweep.variants.values()))
    variants = {
        value: Variant(it.label, [e for e in it.entries if e.seed in common], it.is_usual)
        for value, it in sweep.variants.items()
    }
    title = f"{title_of(sweep.scheme)} by {sweep.option}"
    if not common:
        return Block(title, ["No seed was trained with every value, so nothing can be compared."])
    labelled = {f"{value:g}": it for value, it in variants.items()}
    seeds = ", ".join(map(str, sorted(common)))
    table = length_table(
        comparison,
        labelled,
        _loss,
        min,
        caption=f"Loss by {sweep.option}, seeds {seeds}; the lowest of each column is marked",
        head=sweep.option,
    )
    lines = []
    for length in comparison.lengths():
        spreads = {v: comparison.spreads(it, _loss) for v, it in variants.items()}
        there = {value: mine[length] for value, mine in spreads.items() if length in mine}
        lines.append(
            Line(
                f"{length:,} tokens",
                list(there),
                [spread.mean for spread in there.values()],
                [spread.standard_error for spread in there.values()],
            )
        )
    chart = Chart(
        name,
        title,
        f"Line chart of the loss against {sweep.option}, a line for each context length. The table "
        f"above has the same values.",
        Axis(sweep.option, log=min(variants) > 0),
        LOSS,
        [Panel("", lines)],
        looks={line.key: further_look(number) for number, line in enumerate(lines)},
    )
    return Block(title, [f"All else as in the row {title_of(sweep.scheme)}."], [table], [chart])


def _by_position(comparison: Comparison, name: str) -> Block:
    several = len(comparison.variants) > 1
    lines = []
    for variant in comparison.variants:
        bins: dict[tuple[int, int], list[Row]] = {}
        for entry in variant.entries:
            for row in entry.measured[comparison.kind].rows:
                bins.setdefault((row["start"], row["stop"]), []).append(row)
        shown = [rows for edge, rows in sorted(bins.items()) if edge[0] >= COMPARED_FROM]
        shown = shown if several and shown else list(bins.values())
        means = [sum(row["loss"] for row in rows) / len(rows) for rows in shown]
        # Those over documents, which say nothing of differences: the documents are the same.
        errors = [rows[0]["standard_error"] for rows in shown] if not several else None
        lines.append(Line(variant.label, [middle(rows[0]) for rows in shown], means, errors))
    left_out = f" From the {COMPARED_FROM}th token on." if several else ""
    chart = Chart(
        name,
        "Loss by position",
        _alternative(comparison, "loss against the number of tokens before the predicted one", ""),
        Axis("tokens before the predicted one", log=True, base=2),
        LOSS,
        [Panel("", lines)],
        trained_mark(comparison),
        note=f"Mean over {comparison.seeds}.{left_out}",
    )
    text = (
        f"The loss of a token with so many before it, each document read from its start: "
        f"{described(comparison.on)}."
    )
    return Block("", [text], [], [chart])


def trained_mark(comparison: Comparison) -> tuple[float, str] | None:
    """The trained length as a place on an axis of lengths."""
    trained = comparison.trained_length
    return None if trained is None else (trained, "trained length")


def _alternative(comparison: Comparison, what: str, finding: str) -> str:
    labels = ", ".join(variant.label for variant in comparison.variants)
    return f"Line chart of the {what} for {labels}. {finding}".strip()


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
