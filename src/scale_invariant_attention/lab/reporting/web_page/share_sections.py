"""The sections on shares: needles found, values recalled, and attention by distance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .comparisons import (
    Comparison,
    best_by_length,
    by_label,
    comparisons,
    described,
    length_lines,
    length_table,
)
from .entries import Entry, Row, Variant, shown
from .loss_sections import trained_mark
from .parts import Axis, Block, Chart, HeatMap, Line, Panel, Section

# With room for the markers of lines that lie on 0 and 1.
FOUND = Axis("share found", low=-0.04, high=1.04)


def needle_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Needles found, if models were tested for them."""
    found = comparisons(entries, "needles")
    cells = comparisons(entries, "needle_cells")
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        text = f"{_needles(comparison.on['format'])} in text; {described(comparison.on)} at each length."
        blocks.append(_shares(comparison, f"needles-{number}", "Needles found", text))
        mine = [it for it in cells if it.on == comparison.on]
        blocks += [_depths(it) for it in mine]
    yield Section("needles", "Needles in a haystack", blocks, _finding(found, "Most needles found"))


def recall_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Values recalled, if models were tested for them."""
    found = comparisons(entries, "recall")
    if not found:
        return
    blocks = []
    for number, comparison in enumerate(found):
        task = ", ".join(f"{name} {shown(value)}" for name, value in comparison.on["task"].items())
        texts = described(comparison.on)
        text = f"Values asked for by their keys, in noise ({task}); {texts} at each length."
        blocks.append(_shares(comparison, f"recall-{number}", "Values recalled", text))
    yield Section("recall", "Associative recall", blocks, _finding(found, "Most values recalled"))


def share(row: Row) -> float:
    """Of a row that counts."""
    return float(row["found"] / row["count"])


def _finding(found: Sequence[Comparison], what: str) -> str:
    best = [text for it in found if (text := best_by_length(it, share, max))]
    return f"{what}: {'. '.join(best)}." if best else ""


def _shares(comparison: Comparison, name: str, title: str, text: str) -> Block:
    table = length_table(
        comparison,
        by_label(comparison.variants),
        share,
        max,
        caption=f"{title} by context length: share, {comparison.over_seeds}; "
        f"the highest of each column is marked",
        head="scheme",
        note=lambda row: f"{row['low']:.3f} to {row['high']:.3f}",
    )
    best = best_by_length(comparison, share, max)
    labels = ", ".join(variant.label for variant in comparison.variants)
    chart = Chart(
        name,
        f"{title} by context length",
        f"Line chart of the share against context length for {labels}. "
        + (f"Highest: {best}." if best else ""),
        Axis("context length in tokens", log=True, base=2),
        FOUND,
        [Panel("", length_lines(comparison, share))],
        trained_mark(comparison),
        note="Bars are standard errors over seeds.",
    )
    beside = "Beside the share of a single seed stands its 95% interval. Higher is better."
    charts = [chart] if len(comparison.lengths()) > 1 else []
    return Block("", [text, beside], [table], charts)


def _depths(comparison: Comparison) -> Block:
    text = (
        "The share found by context length, to the right, and depth, downwards: 0% is the start of the "
        "text. All seeds together."
        + ("" if comparison.trained_length is None else " * is the trained length.")
    )
    maps = [_heat_map(comparison, variant) for variant in comparison.variants]
    return Block("By depth", [text], heat_maps=maps)


def _heat_map(comparison: Comparison, variant: Variant) -> HeatMap:
    counts: dict[tuple[int, float, float], list[int]] = {}
    for entry in variant.entries:
        for row in entry.measured[comparison.kind].rows:
            total = counts.setdefault((row["length"], row["start"], row["stop"]), [0, 0])
            total[0] += row["found"]
            total[1] += row["count"]
    lengths = sorted({length for length, _, _ in counts})
    edges = sorted({(start, stop) for _, start, stop in counts})
    trained = comparison.trained_length
    rows = []
    for start, stop in edges:
        totals = [counts.get((length, start, stop)) for length in lengths]
        shares = [it[0] / it[1] if it and it[1] else None for it in totals]
        rows.append((f"{start * 100:.3g}-{stop:.0%}", shares))
    columns = [f"{length:,}" + ("*" if length == trained else "") for length in lengths]
    return HeatMap(variant.label, columns, rows)


def _needles(form: Mapping[str, Any]) -> str:
    noun = "needle" if form["needles"] == 1 else "needles"
    digits = "digit" if form["digits"] == 1 else "digits"
    return f"{form['needles']} {noun} of {form['digits']} {digits}"


def attention_section(entries: Sequence[Entry]) -> Iterator[Section]:
    """Attention by distance, if it was measured."""
    found = comparisons(entries, "attention")
    if not found:
        return
    by_length = {str(it.on): it for it in comparisons(entries, "attention_by_length")}
    blocks = []
    for number, comparison in enumerate(found):
        blocks.append(_by_distance(comparison, f"attention-{number}"))
        blocks.append(_by_length(by_length[str(comparison.on)]))
    yield Section("attention", "Attention by distance", blocks)


def _by_distance(comparison: Comparison, name: str) -> Block:
    lengths = comparison.lengths()
    labels = ", ".join(variant.label for variant in comparison.variants)
    chart = Chart(
        name,
        "Share of attention by distance",
        f"Line chart of the share of attention on each range of distances for {labels}.",
        Axis("distance, a point for each range", log=True),
        Axis("share of attention"),
        [
            Panel(f"{n:,} tokens", [_line(comparison, it, n) for it in comparison.variants])
            for n in reversed(lengths)
        ],
        note=f"Mean over layers, heads, queries and {comparison.seeds}. The same share in every decade "
        f"is scale-invariant; the last range ends with the context, and may be a short one.",
    )
    text = f"Where the last queries of a text look: {described(comparison.on)}."
    return Block("", [text], charts=[chart])


def _line(comparison: Comparison, variant: Variant, length: int) -> Line:
    ranges: dict[tuple[int, int], list[float]] = {}
    for entry in variant.entries:
        for row in entry.measured[comparison.kind].rows:
            if row["length"] == length:
                ranges.setdefault((row["start"], row["stop"]), []).append(row["share"])
    # A range stands at its middle on an axis of logarithms, which has no place for distance 0.
    return Line(
        variant.label,
        [(max(1, start) * (stop - 1)) ** 0.5 for start, stop in sorted(ranges)],
        [sum(shares) / len(shares) for _, shares in sorted(ranges.items())],
    )


def _by_length(comparison: Comparison) -> Block:
    nearest = f"the nearest {comparison.on['recent']:,} tokens"
    tables = [
        length_table(
            comparison,
            by_label(comparison.variants),
            value,
            None,
            caption=f"{what} by context length, {comparison.over_seeds}",
            head="scheme",
        )
        for value, what in (
            (_recent, f"Share of attention on {nearest}"),
            (_entropy, "Entropy of attention in nats"),
        )
    ]
    return Block("With length", tables=tables)


def _recent(row: Row) -> float:
    return float(row["recent_share"])


def _entropy(row: Row) -> float:
    return float(row["entropy"])
