"""Entries that were measured on the same, side by side: their values, the best of them, their lines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..losses import Spread
from .entries import Entry, Row, Sweep, Variant, sweeps_of, variants_of
from .parts import Cell, Line, Table
from .parts import Row as TableRow

Best = Callable[[Sequence[float]], float]
Value = Callable[[Row], float]


@dataclass(frozen=True)
class Comparison:
    """Variants measured on the same; those that only belong to a sweep are in `sweeps` alone."""

    kind: str
    on: Mapping[str, Any]
    variants: Sequence[Variant]
    sweeps: Sequence[Sweep]

    @property
    def trained_length(self) -> int | None:
        """That of all, if it is one."""
        lengths = {it.config["length"] for variant in self.variants for it in variant.entries}
        return int(lengths.pop()) if len(lengths) == 1 else None

    @property
    def seeds(self) -> str:
        """How many seeds there are, in words.

        Several numbers where variants differ in it.
        """
        counts = sorted({len(variant.entries) for variant in self.variants})
        return f"{' or '.join(map(str, counts))} {'seed' if counts == [1] else 'seeds'}"

    @property
    def over_seeds(self) -> str:
        """What the values are, in words; a single seed has no error."""
        one = all(len(variant.entries) == 1 for variant in self.variants)
        return "one seed" if one else f"mean and standard error over {self.seeds}"

    def lengths(self) -> list[int]:
        """All lengths that something was measured at."""
        everyone = [*self.variants, *(it for s in self.sweeps for it in s.variants.values())]
        return sorted(
            {
                row["length"]
                for variant in everyone
                for entry in variant.entries
                for row in entry.measured[self.kind].rows
            }
        )

    def spreads(self, variant: Variant, value: Value) -> dict[int, Spread]:
        """What the seeds of a variant came to, by length."""
        found = {}
        for length in self.lengths():
            spread = variant.spread(
                {
                    entry.source: value(row)
                    for entry in variant.entries
                    for row in entry.measured[self.kind].rows
                    if row["length"] == length
                }
            )
            if spread is not None:
                found[length] = spread
        return found


def comparisons(entries: Sequence[Entry], kind: str) -> list[Comparison]:
    """Entries with a kind of measurement, together where they were measured on the same."""
    grouped: list[tuple[Mapping[str, Any], list[Entry]]] = []
    for entry in entries:
        if kind in entry.measured:
            on = entry.measured[kind].on
            for there, mine in grouped:
                if there == on:
                    mine.append(entry)
                    break
            else:
                grouped.append((on, [entry]))
    return [_comparison(kind, on, mine) for on, mine in grouped]


def _comparison(kind: str, on: Mapping[str, Any], entries: Sequence[Entry]) -> Comparison:
    variants = variants_of(entries)
    sweeps = sweeps_of(variants)
    swept = {it.label for sweep in sweeps for it in sweep.variants.values() if not it.is_usual}
    return Comparison(kind, on, [it for it in variants if it.label not in swept], sweeps)


def length_table(
    comparison: Comparison,
    variants: Mapping[str, Variant],
    value: Value,
    best: Best | None,
    *,
    caption: str,
    head: str,
    note: Callable[[Row], str] = lambda row: "",
) -> Table:
    """A row for each variant by its label, a column for each length, the best of each marked, if any is.

    `note` is what stands beside the value of a single seed, which has no standard error.
    """
    lengths = comparison.lengths()
    spreads = {label: comparison.spreads(it, value) for label, it in variants.items()}
    # Where all are alike none is best.
    marked = {
        length: best([mine[length].mean for mine in spreads.values() if length in mine])
        for length in lengths
        if best is not None
        and len({mine[length].mean for mine in spreads.values() if length in mine}) > 1
    }
    rows = []
    for label, variant in variants.items():
        cells = []
        for length in lengths:
            spread = spreads[label].get(length)
            if spread is None:
                cells.append(Cell("", "not measured"))
                continue
            is_best = spread.mean == marked.get(length)
            beside = note(_row_at(variant, comparison.kind, length)) if spread.count == 1 else ""
            cells.append(Cell(str(spread), beside, is_best))
        rows.append(TableRow(label, cells, variant.label, states(variant)))
    trained = comparison.trained_length
    header = [f"{length:,}" + (" (trained)" if length == trained else "") for length in lengths]
    return Table(caption, (head, *header), rows)


def length_lines(comparison: Comparison, value: Value) -> list[Line]:
    """The line of each variant against length, with the standard errors of its seeds."""
    lines = []
    for variant in comparison.variants:
        spreads = comparison.spreads(variant, value)
        lines.append(
            Line(
                variant.label,
                list(spreads),
                [spread.mean for spread in spreads.values()],
                [spread.standard_error for spread in spreads.values()],
            )
        )
    return lines


def best_by_length(comparison: Comparison, value: Value, best: Best) -> str:
    """Which variant is best at each length, in words; nothing where there is no choice."""
    if len(comparison.variants) < 2:
        return ""
    found: dict[str, list[str]] = {}
    for length in comparison.lengths():
        means = {
            variant.label: spreads[length]
            for variant in comparison.variants
            if length in (spreads := comparison.spreads(variant, value))
        }
        if not means:
            continue
        top = best([spread.mean for spread in means.values()])
        if all(spread.mean == top for spread in means.values()):
            found.setdefault("all alike", []).append(f"{top:.3f} at {length:,}")
            continue
        names = " and ".join(label for label, it in means.items() if it.mean == top)
        found.setdefault(names, []).append(f"{top:.3f} at {length:,}")
    return "; ".join(f"{names} with {', '.join(places)}" for names, places in found.items())


def states(variant: Variant) -> str:
    """In what way its runs are not finished."""
    return "; ".join(sorted({entry.state for entry in variant.entries if entry.state}))


def by_label(variants: Sequence[Variant]) -> dict[str, Variant]:
    """Variants by their labels."""
    return {variant.label: variant for variant in variants}


def described(on: Mapping[str, Any]) -> str:
    """What something was measured on, in words."""
    words = []
    if on.get("data"):
        words.append(f"the validation split of {on['data']}")
    nouns = {
        "tokens": "tokens",
        "documents": "documents",
        "examples": "examples",
        "contexts": "texts",
    }
    words += [f"{on[name]:,} {noun}" for name, noun in nouns.items() if on.get(name)]
    return ", ".join(words)


def _row_at(variant: Variant, kind: str, length: int) -> Row:
    return next(
        row
        for entry in variant.entries
        for row in entry.measured[kind].rows
        if row["length"] == length
    )
