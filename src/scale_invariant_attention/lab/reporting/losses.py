"""What several seeds came to, by length: losses, or other values that records have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """A mean over `count` seeds and its standard error; a single seed has none.

    >>> print(Spread.of([1.0, 2.0]), Spread.of([1.0]))
    1.500 ± 0.500 1.000
    """

    mean: float
    standard_error: float | None
    count: int

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """That of one value a seed."""
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(mean(values), error, len(values))

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.3f}"
        return f"{self.mean:.3f}{error}"


@dataclass(frozen=True)
class SeedRow:
    """What several seeds of the same training came to, by length; `seeds` has the values of each."""

    label: str
    seeds: Mapping[int, Mapping[int, float]]

    @property
    def spreads(self) -> dict[int, Spread]:
        """The spread over seeds at each length."""
        lengths = next(iter(self.seeds.values()))
        return {
            length: Spread.of([losses[length] for losses in self.seeds.values()])
            for length in lengths
        }


def losses_of(record: Record) -> dict[int, float]:
    """The loss by length."""
    return {entry["length"]: entry["loss"] for entry in record["losses"]}


def seed_rows(
    records: Iterable[Record],
    label: Callable[[Record], str],
    values: Callable[[Record], Mapping[int, float]] = losses_of,
) -> list[SeedRow]:
    """Records with the same label in one row, the rows in the order in which labels first come.

    >>> record = {"config": {"scheme": "rope", "seed": 0}, "losses": [{"length": 256, "loss": 1.5}]}
    >>> [row] = seed_rows([record], label=scheme_of)
    >>> print(row.label, row.spreads[256])
    rope 1.500
    """
    rows: dict[str, dict[int, Mapping[int, float]]] = {}
    for record in records:
        rows.setdefault(label(record), {})[record["config"]["seed"]] = values(record)
    return [SeedRow(name, seeds) for name, seeds in rows.items()]


def lowest(rows: Mapping[str, SeedRow], length: int) -> list[str]:
    """The names with the lowest mean at a length: those that share a training may be as low.

    >>> rows = {"a": SeedRow("a", {0: {256: 1.5}}), "b": SeedRow("b", {0: {256: 1.2}})}
    >>> lowest(rows, 256)
    ['b']
    """
    means = {name: row.spreads[length].mean for name, row in rows.items()}
    return [name for name, value in means.items() if value == min(means.values())]


def over_seeds(rows: Mapping[str, SeedRow]) -> str:
    """What the cells of a table are.

    >>> over_seeds({"a": SeedRow("a", {0: {256: 1.5}, 1: {256: 1.4}})})
    'mean and standard error over 2 seeds'
    """
    counts = sorted({len(row.seeds) for row in rows.values()})
    if counts == [1]:
        return "one seed"
    return f"mean and standard error over {' or '.join(map(str, counts))} seeds"


def scheme_of(record: Record) -> str:
    """The scheme that a record is of."""
    return str(record["config"]["scheme"])


def option_of(record: Record, name: str) -> str:
    """The value of an option of the scheme that a record is of, with all its digits."""
    return repr(float(record["config"]["scheme_options"][name])).removesuffix(".0")
