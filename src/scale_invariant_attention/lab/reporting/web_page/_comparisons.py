"""Entries measured on the same data, side by side: their tables, lines and best variants."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...seeds import SeedRow, Spread, over_seeds
from ...tables import Best, Table, length_table
from ..pages import listed
from ._entries import Entry, MeasuredOn, Measurement
from ._parts import Line
from ._variants import OPTION, Setting, Sweep, Variant, settings_of, sweeps_of, variants_of

# The measurement of an entry that is compared, and the number that is compared of its rows.
Kind = Callable[[Entry], Measurement[Any] | None]
Value = Callable[[Any], float]


@dataclass(frozen=True)
class Comparison:
    """Variants measured on the same; those that only belong to a sweep are in `sweeps` alone."""

    kind: Kind
    on: MeasuredOn
    variants: Sequence[Variant]
    sweeps: Sequence[Sweep]

    @property
    def train_length(self) -> int | None:
        """The training length, if all have the same."""
        lengths = {it.config.length for variant in self.variants for it in variant.entries}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def labels(self) -> str:
        """The labels of all variants."""
        return ", ".join(variant.label for variant in self.variants)

    @property
    def usual_settings(self) -> str:
        """The settings that labels leave out, in a sentence, if any.

        These are options with another value than the scheme's default, and fields that differ.
        """
        values: dict[Setting, set[str]] = {}
        for variant in self._everyone:
            for setting, value in settings_of(variant.config).items():
                values.setdefault(setting, set()).add(value)
        words: dict[str, None] = {}
        for (name, default), usual in ChainMap(*(dict(it.usual) for it in self._everyone)).items():
            found = values.get((name, default), set())
            option = name.startswith(OPTION)
            if found and (usual != default if option else len(found) > 1 and usual in found):
                instead = f" instead of {default}" if option else ""
                words[f"{name.rpartition('.')[2]} is {usual}{instead}"] = None
        return f"Unless a row says otherwise, {listed(list(words))}." if words else ""

    @property
    def seeds(self) -> str:
        """The number of seeds in words: several numbers where variants differ."""
        counts = sorted({len(variant.entries) for variant in self.variants})
        return f"{' or '.join(map(str, counts))} {'seed' if counts == [1] else 'seeds'}"

    @property
    def over_seeds(self) -> str:
        """A phrase for what the cells of a table are."""
        return over_seeds(
            SeedRow(it.label, {entry.seed: {} for entry in it.entries}) for it in self.variants
        )

    @property
    def _everyone(self) -> list[Variant]:
        return [*self.variants, *(it for sweep in self.sweeps for it in sweep.variants.values())]

    def rows(self, entry: Entry) -> Sequence[Any]:
        """The rows that an entry was measured with."""
        measurement = self.kind(entry)
        return () if measurement is None else measurement.rows

    def lengths(self) -> list[int]:
        """All lengths of the measurements."""
        entries = (entry for variant in self._everyone for entry in variant.entries)
        return sorted({row.length for entry in entries for row in self.rows(entry)})

    def seed_row(self, variant: Variant, value: Value) -> SeedRow:
        """The values of a variant by seed and length."""
        seeds = {
            entry.seed: {row.length: value(row) for row in self.rows(entry)}
            for entry in variant.entries
        }
        return SeedRow(variant.label, seeds)

    def spreads(self, variant: Variant, value: Value) -> dict[int, Spread]:
        """Mean and standard error over the seeds of a variant, by ascending length."""
        return dict(sorted(self.seed_row(variant, value).spreads.items()))

    def table(
        self,
        rows: Mapping[str, SeedRow],
        best: Best | None,
        *,
        caption: str,
        head: str = "scheme",
        titles: Mapping[str, str] | None = None,
        note: Callable[[str, int, Spread], str] = lambda label, length, spread: "",
    ) -> Table:
        """One row per variant, one column per length; rows are by the labels of variants."""
        states = {it.label: it.states for it in self._everyone}
        table = length_table(
            rows,
            head,
            best,
            lengths=self.lengths(),
            titles=titles,
            column=self._column,
            note=note,
            caption=caption,
        )
        with_states = [replace(it, note=states.get(it.key or "", "")) for it in table.rows]
        return replace(table, rows=with_states)

    def _column(self, length: int) -> str:
        return f"{length:,}" + (" (trained)" if length == self.train_length else "")

    def lines(self, value: Value) -> list[Line]:
        """The line of each variant against length, with the standard errors of its seeds."""
        return [
            spread_line(variant.label, self.spreads(variant, value)) for variant in self.variants
        ]

    def best_by_length(self, value: Value, best: Best) -> str:
        """The best variants at each length in words; nothing if there is only one variant."""
        if len(self.variants) < 2:
            return ""
        spreads = {it.label: self.spreads(it, value) for it in self.variants}
        found: dict[str, list[str]] = {}
        for length in self.lengths():
            means = {label: it[length].printed for label, it in spreads.items() if length in it}
            if not means:
                continue
            top = best(means.values())
            names = [label for label, mean in means.items() if mean == top]
            who = "all alike" if len(names) == len(means) else listed(names)
            found.setdefault(who, []).append(f"{top:.3f} at {length:,}")
        return "; ".join(f"{who} with {', '.join(values)}" for who, values in found.items())


def spread_line(label: str, spreads: Mapping[Any, Spread]) -> Line:
    """A line of means with their standard errors."""
    return Line(
        label,
        list(spreads),
        [spread.mean for spread in spreads.values()],
        [spread.standard_error for spread in spreads.values()],
    )


def comparisons(entries: Sequence[Entry], kind: Kind) -> list[Comparison]:
    """Entries with a kind of measurement, together where they were measured on the same."""
    grouped: list[tuple[MeasuredOn, set[int]]] = []
    for entry in entries:
        measurement = kind(entry)
        if measurement is None:
            continue
        for on, together in grouped:
            if on == measurement.on:
                together.add(id(entry))
                break
        else:
            grouped.append((measurement.on, {id(entry)}))
    variants = variants_of(entries)
    return [_comparison(kind, on, variants, together) for on, together in grouped]


def _comparison(
    kind: Kind, on: MeasuredOn, variants: Sequence[Variant], together: set[int]
) -> Comparison:
    """The parts of variants that were measured together, under the labels of the whole page."""
    parts = [
        replace(variant, entries=measured)
        for variant in variants
        if (measured := [entry for entry in variant.entries if id(entry) in together])
    ]
    sweeps = sweeps_of(parts)
    swept = {it.label for sweep in sweeps for it in sweep.variants.values() if it is not sweep.main}
    return Comparison(kind, on, [it for it in parts if it.label not in swept], sweeps)
