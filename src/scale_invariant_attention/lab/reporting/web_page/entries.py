"""Entries of the page, one per run or record, and the variants and sweeps that they form."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..drawing import TITLES
from ..losses import Spread

# A row of a measurement as it is recorded.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measurement:
    """Rows, and what they were measured `on`: only what was measured on the same can be compared."""

    on: Mapping[str, Any]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Entry:
    """A training and what was measured of its model.

    `measured` has what there is of "training" and "validation" by step, "losses", "needles" and
    "recall" by length, "positions", "needle_cells" by length and depth, "attention" by length and
    distance and "attention_by_length". `state` says in what way a run, or what was measured of it, is
    not finished. `trained_as` names another entry if the weights are those of that one.
    """

    name: str
    source: str
    config: Mapping[str, Any]
    origins: Sequence[Mapping[str, Any]]
    measured: Mapping[str, Measurement]
    state: str | None = None
    trained_as: str | None = None
    seconds: float | None = None

    @property
    def scheme(self) -> str:
        """The name of its scheme."""
        return str(self.config["scheme"])

    @property
    def seed(self) -> int:
        """The seed of its training."""
        return int(self.config["seed"])


def flat(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a configuration, those of its mappings among them.

    >>> dict(flat({"layers": 4, "scheme_options": {"tau": 10.0}}))
    {'layers': 4, 'scheme_options.tau': 10.0}
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


# What may differ between the seeds of one training.
OF_A_SEED = ("seed", "start")

# An option is swept if a scheme has been trained with so many values of it.
SWEPT = 3


@dataclass(frozen=True)
class Variant:
    """Seeds of one training under a label; `is_usual` if the label is that of its scheme alone."""

    label: str
    entries: Sequence[Entry]
    is_usual: bool

    @property
    def scheme(self) -> str:
        """The scheme that all have."""
        return self.entries[0].scheme

    def spread(self, values: Mapping[str, float]) -> Spread | None:
        """That of the values that entries have, by their sources; None if none has one."""
        found = [values[entry.source] for entry in self.entries if entry.source in values]
        return Spread.of(found) if found else None


@dataclass(frozen=True)
class Sweep:
    """Variants of a scheme that differ in one number among its options, by its values."""

    scheme: str
    option: str
    variants: Mapping[float, Variant]


def title_of(scheme: str) -> str:
    """What tables call a scheme, one that has no title too."""
    return TITLES.get(scheme, scheme)


def variants_of(entries: Sequence[Entry]) -> list[Variant]:
    """Entries with the same configuration but for their seeds, in the order in which they come.

    Of the variants of a scheme the one with most seeds has its title; others add what differs from it.
    The same seed again is no further seed: it stands by itself, with its name.
    """
    grouped: dict[str, list[Entry]] = {}
    again: list[Entry] = []
    for entry in entries:
        mine = grouped.setdefault(_identity(entry), [])
        (again if entry.seed in {it.seed for it in mine} else mine).append(entry)
    usual: dict[str, list[Entry]] = {}
    for mine in grouped.values():
        if len(mine) > len(usual.get(mine[0].scheme, ())):
            usual[mine[0].scheme] = mine
    found = [_variant(mine, usual[mine[0].scheme][0]) for mine in grouped.values()]
    return found + [
        Variant(f"{title_of(entry.scheme)} ({entry.source})", [entry], False) for entry in again
    ]


def sweeps_of(variants: Sequence[Variant]) -> list[Sweep]:
    """The options of which a scheme has at least three values, all else being as usual."""
    found = []
    for usual in variants:
        if not usual.is_usual:
            continue
        by_option: dict[str, dict[float, Variant]] = {}
        for other in variants:
            if other.scheme == usual.scheme and not other.is_usual:
                different = differing(usual.entries[0].config, other.entries[0].config)
                if len(different) == 1:
                    [name] = different
                    here, there = (dict(flat(it.entries[0].config)) for it in (usual, other))
                    values = (here.get(name), there.get(name))
                    if name.startswith("scheme_options.") and all(map(_is_number, values)):
                        rows = by_option.setdefault(name, {float(here[name]): usual})
                        rows[float(there[name])] = other
        found += [
            Sweep(usual.scheme, name.removeprefix("scheme_options."), dict(sorted(mine.items())))
            for name, mine in by_option.items()
            if len(mine) >= SWEPT
        ]
    return found


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The fields in which two configurations differ, but for what may differ between seeds.

    >>> differing({"seed": 0, "scheme_options": {"tau": 1}}, {"seed": 1, "scheme_options": {"tau": 2}})
    ['scheme_options.tau']
    """
    here, there = dict(flat(first)), dict(flat(second))
    return [
        name
        for name in {**here, **there}
        if name not in OF_A_SEED and _text(here.get(name)) != _text(there.get(name))
    ]


def shown(value: Any) -> str:
    """A value of a configuration in a word or two.

    >>> shown(16.0), shown(None), shown([256, 1024]), shown("rope")
    ('16', 'none', '256, 1024', 'rope')
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    return str(value)


def _variant(mine: list[Entry], usual: Entry) -> Variant:
    title = title_of(usual.scheme)
    there = dict(flat(mine[0].config))
    different = differing(usual.config, mine[0].config)
    labels = [f"{name.rpartition('.')[2]} {shown(there.get(name))}" for name in different]
    return Variant(", ".join((title, *labels)), mine, not labels)


def _identity(entry: Entry) -> str:
    fields = {name: value for name, value in flat(entry.config) if name not in OF_A_SEED}
    return json.dumps({name: _text(fields[name]) for name in sorted(fields)})


def _text(value: Any) -> str:
    """Equal for what is equal, 16 and 16.0 too."""
    return json.dumps(float(value) if _is_number(value) else value, sort_keys=True, default=str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
