"""The sections on shares: needles, values, answers in tasks, and attention by distance."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from ....data.needles import NeedleFormat
from ...seeds import Spread
from ._comparisons import Comparison, comparisons
from ._entries import Entry, shown
from ._loss_sections import block_by_length, finding_of, finite
from ._parts import Axis, Block, Chart, HeatMap, Line, Panel, Section
from ._variants import Variant

# With room for the markers of lines at 0 and 1.
FOUND = Axis("share found", low=-0.04, high=1.04)
EXCESS = Axis("nats per answer above the optimum")
_share = attrgetter("share")


def needle_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Needles found, if models were tested for them."""
    found = comparisons(entries, lambda entry: entry.needles)
    cells = comparisons(entries, lambda entry: entry.needle_cells)
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        text = f"{_needles(comparison.on.form)} in text; {comparison.on} at each length."
        blocks.append(_shares(comparison, f"needles-{number}", "Needles found", text))
        blocks += [_depths(it) for it in cells if it.on == comparison.on]
    finding = finding_of(found, "Most needles found", _share, max)
    yield Section("needles", "Needles in a haystack", blocks, finding)


def recall_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Values recalled, if models were tested for them."""
    found = comparisons(entries, lambda entry: entry.recall)
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        options = comparison.on.options or {}
        task = ", ".join(f"{name} {shown(value)}" for name, value in options.items())
        text = f"Values of queried keys, in noise ({task}); {comparison.on} at each length."
        blocks.append(_shares(comparison, f"recall-{number}", "Values recalled", text))
    finding = finding_of(found, "Most values recalled", _share, max)
    yield Section("recall", "Associative recall", blocks, finding)


def task_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Scores in tasks, if models were tested in any."""
    blocks = []
    for number, comparison in enumerate(comparisons(entries, lambda entry: entry.scores)):
        on, name = comparison.on, f"tasks-{number}"
        options = "".join(f", {name} {shown(it)}" for name, it in (on.options or {}).items())
        where = f"The task {on.task}{options}: {on} at each length."
        rows = (row for it in comparison.variants for row in comparison.rows(it.entries[0]))
        if next(rows).excess is None:
            blocks.append(_shares(comparison, name, f"Answers right, {on.task}", where))
            continue
        above = block_by_length(
            *(comparison, name, attrgetter("score"), min, EXCESS),
            title=f"Loss above the optimum, {on.task}",
            caption="Loss in nats per answer above that of the best prediction, by context length",
            text=[where, "Lower is better."],
        )
        blocks.append(above)
    if blocks:
        yield Section("tasks", "Tasks of length generalisation", blocks)


def attention_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Attention by distance, if it was measured."""
    blocks = []
    for number, comparison in enumerate(comparisons(entries, lambda entry: entry.attention)):
        blocks.append(_by_distance(comparison, f"attention-{number}"))
        blocks.append(_by_length(comparison))
    if blocks:
        yield Section("attention", "Attention by distance", blocks)


def _shares(comparison: Comparison, name: str, title: str, text: str) -> Block:
    variants = {it.label: it for it in comparison.variants}

    def interval(label: str, length: int, spread: Spread) -> str:
        """The confidence interval of a single seed, which has no standard error."""
        rows = (row for it in variants[label].entries for row in comparison.rows(it))
        row = next(row for row in rows if row.length == length)
        return f"{row.low:.3f} to {row.high:.3f}" if spread.count == 1 else ""

    beside = "The share of a single seed is followed by its 95% interval. Higher is better."
    return block_by_length(
        *(comparison, name, _share, max, FOUND),
        title=title,
        caption=f"{title} by context length: share",
        text=[text, beside],
        note=interval,
    )


def _depths(comparison: Comparison) -> Block:
    text = (
        "Share found by context length (to the right) and depth (downwards); 0% is the start of the "
        "text. All seeds together."
        + ("" if comparison.train_length is None else " * marks the training length.")
    )
    maps = [_heat_map(comparison, variant) for variant in comparison.variants]
    return Block("By depth", [text], heat_maps=maps)


def _heat_map(comparison: Comparison, variant: Variant) -> HeatMap:
    counts: dict[tuple[int, float, float], tuple[int, int]] = {}
    for entry in variant.entries:
        for cell in comparison.rows(entry):
            key = (cell.length, cell.start, cell.stop)
            found, count = counts.get(key, (0, 0))
            counts[key] = (found + cell.found, count + cell.count)
    lengths = sorted({length for length, _, _ in counts})
    rows = []
    for start, stop in sorted({(start, stop) for _, start, stop in counts}):
        cells = [counts.get((length, start, stop)) for length in lengths]
        shares = [None if it is None else it[0] / it[1] for it in cells]
        rows.append((f"{start * 100:.3g}-{stop:.0%}", shares))
    trained = comparison.train_length
    columns = [f"{length:,}" + ("*" if length == trained else "") for length in lengths]
    return HeatMap(variant.label, columns, rows)


def _needles(form: NeedleFormat | None) -> str:
    form = form or NeedleFormat()
    noun = "needle" if form.needles == 1 else "needles"
    digits = "digit" if form.digits == 1 else "digits"
    return f"{form.needles} {noun} of {form.digits} {digits}"


def _by_distance(comparison: Comparison, name: str) -> Block:
    chart = Chart(
        name,
        "Share of attention by distance",
        f"Line chart of the share of attention on each range of distances for {comparison.labels}.",
        Axis("distance, one point per range", log=True),
        Axis("share of attention"),
        [
            Panel(
                f"{n:,} tokens", [_distance_line(comparison, it, n) for it in comparison.variants]
            )
            for n in reversed(comparison.lengths())
        ],
        note=f"Mean over layers, heads, queries and {comparison.seeds}. Attention with the same "
        f"share in every decade is scale-invariant; the last range ends with the context.",
    )
    text = f"Attention of the last queries of a text: {comparison.on}."
    return Block("", [text], charts=[chart])


def _distance_line(comparison: Comparison, variant: Variant, length: int) -> Line:
    ranges: dict[tuple[int, int], list[float]] = {}
    for entry in variant.entries:
        for row in comparison.rows(entry):
            if row.length == length:
                for edges, share in zip(row.ranges, row.overall.share, strict=True):
                    ranges.setdefault(edges, []).append(share.mean)
    # A range is drawn at its middle on the logarithmic axis, which cannot show distance 0.
    return Line(
        variant.label,
        [(max(1, start) * (stop - 1)) ** 0.5 for start, stop in sorted(ranges)],
        [finite(sum(shares) / len(shares)) for _, shares in sorted(ranges.items())],
    )


def _by_length(comparison: Comparison) -> Block:
    nearest = f"the nearest {comparison.on.recent:,} tokens"
    tables = [
        comparison.table(
            {it.label: comparison.seed_row(it, value) for it in comparison.variants},
            None,
            caption=f"{what} by context length, {comparison.over_seeds}",
        )
        for value, what in (
            (attrgetter("recent_share.mean"), f"Share of attention on {nearest}"),
            (attrgetter("global_entropy.mean"), "Entropy of attention in nats"),
        )
    ]
    return Block("By context length", tables=tables)
