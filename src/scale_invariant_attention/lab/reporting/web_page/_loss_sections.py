"""The sections on loss: by length, against a swept option, by position and through training."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from ....evaluation import PositionLoss
from ...seeds import Spread, with_common_seeds
from ...tables import Best
from ..drawing import title_of
from ..evaluation_figures import COMPARED_FROM, middle
from ._comparisons import Comparison, Kind, Value, comparisons, spread_line
from ._entries import Entry
from ._parts import Axis, Block, Chart, Line, Panel, Section, further_look
from ._variants import Sweep, Variant

LOSS = Axis("loss in nats per token")
_loss = attrgetter("loss")

# Points of a line: as many as a screen can show.
POINTS = 250


def loss_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Loss by length, if it was measured."""
    found = comparisons(entries, lambda entry: entry.losses)
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        text = f"The same tokens at every length: {comparison.on}. Lower is better."
        block = block_by_length(
            *(comparison, f"loss-{number}", _loss, min, LOSS),
            title="Loss",
            caption="Loss in nats per token by context length",
            text=[text],
        )
        blocks.append(block)
        blocks += [
            _swept(comparison, sweep, f"loss-{number}-{sweep.main.scheme}-{sweep.option}")
            for sweep in comparison.sweeps
        ]
    finding = finding_of(found, "Lowest loss", _loss, min)
    yield Section("losses", "Loss by context length", blocks, finding)


def position_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Loss by position, if it was measured."""
    found = comparisons(entries, lambda entry: entry.positions)
    if not found:
        return
    blocks = [_by_position(it, f"position-{number}") for number, it in enumerate(found)]
    yield Section("positions", "Loss by position", blocks)


def training_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Loss by step, if anything has been trained."""
    found = [it for it in comparisons(entries, lambda entry: entry.training) if _has_steps(it)]
    if not found:
        return
    blocks = [_by_step(it, f"training-{number}") for number, it in enumerate(found)]
    others = dict.fromkeys(
        title_of(it.scheme) for it in entries if it.trained_as and it.attention is None
    )
    if others:
        text = f"{', '.join(others)}: evaluated with the weights of another training; see Runs."
        blocks.append(Block("", [text]))
    yield Section("training", "Training", blocks)


def trained_mark(comparison: Comparison) -> tuple[float, str] | None:
    """The training length as a mark on an axis of lengths."""
    length = comparison.train_length
    return None if length is None else (length, "training length")


def block_by_length(
    comparison: Comparison,
    name: str,
    value: Value,
    best: Best,
    axis: Axis,
    *,
    title: str,
    caption: str,
    text: Sequence[str],
    note: Callable[[str, int, Spread], str] = lambda label, length, spread: "",
) -> Block:
    """A table by context length and, if there are several lengths, a chart of the same values."""
    extreme = "lowest" if best is min else "highest"
    table = comparison.table(
        {it.label: comparison.seed_row(it, value) for it in comparison.variants},
        best,
        caption=f"{caption}, {comparison.over_seeds}; the {extreme} in each column is marked",
        note=note,
    )
    finding = comparison.best_by_length(value, best)
    what = "loss" if best is min else "share"
    chart = Chart(
        name,
        f"{title} by context length",
        f"Line chart of the {what} against context length for {comparison.labels}. "
        + (f"{extreme.capitalize()}: {finding}." if finding else ""),
        Axis("context length in tokens", log=True, base=2),
        axis,
        [Panel("", comparison.lines(value))],
        trained_mark(comparison),
        note="" if comparison.seeds == "1 seed" else "Bars are standard errors over seeds.",
    )
    charts = [chart] if len(comparison.lengths()) > 1 else []
    return Block("", [*text, *filter(None, [comparison.usual_settings])], [table], charts)


def finding_of(found: Sequence[Comparison], what: str, value: Value, best: Best) -> str:
    """The best variants of every comparison, with its data where there are several."""
    texts = {str(it.on): text for it in found if (text := it.best_by_length(value, best))}
    if len(texts) > 1:
        return " ".join(f"{what}, on {on}: {text}." for on, text in texts.items())
    return "".join(f"{what}: {text}." for text in texts.values())


def _swept(comparison: Comparison, sweep: Sweep, name: str) -> Block:
    found = {value: comparison.seed_row(it, _loss) for value, it in sweep.variants.items()}
    rows = with_common_seeds(found)
    title = f"{title_of(sweep.main.scheme)} by {sweep.option}"
    common = next(iter(rows.values())).seeds
    if not common:
        return Block(
            title, ["No seed was trained with every value, so the values cannot be compared."]
        )
    seeds = ", ".join(map(str, common))
    table = comparison.table(
        {row.label: row for row in rows.values()},
        min,
        caption=f"Loss by {sweep.option}, seeds {seeds}; the lowest in each column is marked",
        head=sweep.option,
        titles={row.label: f"{value:g}" for value, row in rows.items()},
    )
    spreads = {value: row.spreads for value, row in rows.items()}
    lines = [
        spread_line(
            f"{length:,} tokens",
            {value: it[length] for value, it in spreads.items() if length in it},
        )
        for length in comparison.lengths()
    ]
    chart = Chart(
        name,
        title,
        f"Line chart of the loss against {sweep.option}, one line per context length. The table "
        f"above has the same values.",
        Axis(sweep.option, log=min(rows) > 0),
        LOSS,
        [Panel("", lines)],
        looks={line.key: further_look(number) for number, line in enumerate(lines)},
    )
    text = f"All other settings as in the row {sweep.main.label}."
    return Block(title, [text], [table], [chart])


def _by_position(comparison: Comparison, name: str) -> Block:
    several = len(comparison.variants) > 1
    lines = []
    for variant in comparison.variants:
        bins: dict[tuple[int, int], list[PositionLoss]] = {}
        for entry in variant.entries:
            for row in comparison.rows(entry):
                bins.setdefault((row.start, row.stop), []).append(row)
        later = [rows for edge, rows in sorted(bins.items()) if edge[0] >= COMPARED_FROM]
        drawn = later if several and later else list(bins.values())
        means = [sum(row.loss for row in rows) / len(rows) for rows in drawn]
        # Errors over documents do not apply to differences: the documents are the same.
        errors = [rows[0].standard_error for rows in drawn] if not several else None
        lines.append(Line(variant.label, [middle(rows[0]) for rows in drawn], means, errors))
    left_out = f" Starts at the {COMPARED_FROM}th token." if several else ""
    chart = Chart(
        name,
        "Loss by position",
        f"Line chart of the loss against the number of tokens before the predicted one for "
        f"{comparison.labels}.",
        Axis("tokens before the predicted one", log=True, base=2),
        LOSS,
        [Panel("", lines)],
        trained_mark(comparison),
        note=f"Mean over {comparison.seeds}.{left_out}",
    )
    text = (
        f"Loss by the number of tokens before the predicted one, each document read from its start: "
        f"{comparison.on}."
    )
    return Block("", [text], [], [chart])


def _has_steps(comparison: Comparison) -> bool:
    return any(comparison.rows(it) for variant in comparison.variants for it in variant.entries)


def _by_step(comparison: Comparison, name: str) -> Block:
    title = f"{comparison.on.data}, task {comparison.on.task}"
    training, validation = attrgetter("training"), attrgetter("validation")
    panels = [Panel("training batches", [_step_line(it, training) for it in comparison.variants])]
    entries = [entry for variant in comparison.variants for entry in variant.entries]
    validations = [it.validation.rows for it in entries if it.validation]
    for length in sorted({row.length or 0 for rows in validations for row in rows}):
        trained = " (trained)" if length == comparison.train_length else ""
        lines = [_step_line(it, validation, length) for it in comparison.variants]
        panels.append(Panel(f"validation at {length:,}{trained}", lines))
    chart = Chart(
        name,
        f"Loss by step: {title}",
        f"Line chart of the loss against the training step for {comparison.labels}.",
        Axis("step"),
        LOSS,
        panels,
        note=f"Mean over {comparison.seeds}. A point of a long curve is the mean of neighbouring steps.",
    )
    swept = sorted({sweep.option for sweep in comparison.sweeps})
    text = [f"Other values of {' and '.join(swept)} are left out."] if swept else []
    return Block(title, text, [], [chart])


def _step_line(variant: Variant, kind: Kind, length: int | None = None) -> Line:
    """Means over seeds, and over neighbouring steps where there are more than `POINTS`."""
    measured = [found.rows for it in variant.entries if (found := kind(it))]
    by_step: dict[int, list[float]] = {}
    for row in chain.from_iterable(measured):
        if row.length == length:
            by_step.setdefault(row.step, []).append(row.loss)
    means = [(step, sum(losses) / len(losses)) for step, losses in sorted(by_step.items())]
    width = math.ceil(len(means) / POINTS) or 1
    bins = [means[first : first + width] for first in range(0, len(means), width)]
    return Line(
        variant.label,
        [sum(step for step, _ in near) / len(near) for near in bins],
        [finite(sum(loss for _, loss in near) / len(near)) for near in bins],
    )


def finite(value: float) -> float | None:
    """A value that a chart can show, None for a gap."""
    return value if math.isfinite(value) else None
