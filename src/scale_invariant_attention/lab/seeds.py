"""Aggregation over seeds: mean and standard error of a measurement by context length."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, TypeVar

from .records import Record

RecordT = TypeVar("RecordT", bound=Record[Any])
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Mean over `count` seeds and its standard error, None for a single seed.

    >>> print(Spread.over([1.0, 2.0]), Spread.over([1.0]))
    1.500 ± 0.500 1.000
    """

    mean: float
    standard_error: float | None
    count: int

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """The spread over one value per seed."""
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(mean(values), error, len(values))

    @property
    def printed(self) -> float:
        """The mean as tables print it: closer ones are alike."""
        return round(self.mean, 3)

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.3f}"
        return f"{self.mean:.3f}{error}"


@dataclass(frozen=True)
class SeedRow:
    """The values of several seeds of one training: ``seeds[seed][length]``."""

    label: str
    seeds: Mapping[int, Mapping[int, float]]

    @property
    def spreads(self) -> dict[int, Spread]:
        """Spread over the seeds that were measured at each length."""
        lengths = dict.fromkeys(length for values in self.seeds.values() for length in values)
        return {
            length: Spread.over([it[length] for it in self.seeds.values() if length in it])
            for length in lengths
        }


def seed_rows(
    records: Iterable[RecordT],
    label: Callable[[RecordT], Key],
    values: Callable[[RecordT], Mapping[int, float]],
) -> dict[Key, SeedRow]:
    """One row for each label, in the order in which labels first appear.

    For the loss of each scheme: ``seed_rows(records, scheme_of, Record.losses_by_length)``.
    """
    rows: dict[Key, dict[int, Mapping[int, float]]] = {}
    for record in records:
        rows.setdefault(label(record), {})[record.seed] = values(record)
    return {key: SeedRow(str(key), seeds) for key, seeds in rows.items()}


def with_common_seeds(rows: Mapping[Key, SeedRow]) -> dict[Key, SeedRow]:
    """Rows with the seeds that all of them have: only these can be compared.

    >>> rows = {"a": SeedRow("a", {0: {}, 1: {}}), "b": SeedRow("b", {1: {}, 2: {}})}
    >>> {label: list(row.seeds) for label, row in with_common_seeds(rows).items()}
    {'a': [1], 'b': [1]}
    """
    seeds = sorted(set.intersection(*(set(row.seeds) for row in rows.values())))
    return {
        key: SeedRow(row.label, {seed: row.seeds[seed] for seed in seeds})
        for key, row in rows.items()
    }


def lowest(rows: Mapping[str, SeedRow], length: int) -> list[str]:
    """Labels of the rows with the lowest mean at a length, as printed.

    >>> rows = {"a": SeedRow("a", {0: {256: 1.5}}), "b": SeedRow("b", {0: {256: 1.2}})}
    >>> lowest(rows, 256)
    ['b']
    """
    means = {label: row.spreads[length].printed for label, row in rows.items()}
    return [label for label, value in means.items() if value == min(means.values())]


def over_seeds(rows: Iterable[SeedRow]) -> str:
    """A phrase for what the cells of a table are.

    >>> over_seeds([SeedRow("a", {0: {256: 1.5}, 1: {256: 1.4}})])
    'mean and standard error over 2 seeds'
    """
    counts = seed_counts(rows)
    return "one seed" if counts == "1" else f"mean and standard error over {counts} seeds"


def seed_counts(rows: Iterable[SeedRow]) -> str:
    """The numbers of seeds of rows, as a sentence lists them.

    >>> seed_counts(SeedRow("a", dict.fromkeys(range(n), {})) for n in (3, 1, 2))
    '1, 2 or 3'
    """
    *fewer, most = map(str, sorted({len(row.seeds) for row in rows}))
    return " or ".join(filter(None, (", ".join(fewer), most)))


def scheme_of(record: Record[Any]) -> str:
    """Name of the scheme of a record: the label of most tables."""
    return record.scheme


def option_value(record: Record[Any], option: str) -> float:
    """The number that an option of the scheme was set to: the label of a sweep."""
    return float(record.config.scheme_options[option])
