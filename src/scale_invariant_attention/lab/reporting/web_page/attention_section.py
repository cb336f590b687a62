"""The section on where the attention of trained models goes: by distance, and how local it stays."""

from collections.abc import Iterator, Sequence

from .comparisons import Comparison, by_label, comparisons, described, length_table
from .entries import Entry, Row
from .parts import Axis, Block, Chart, Line, Panel, Section
from .variants import Variant


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
