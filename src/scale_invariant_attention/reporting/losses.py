"""Losses by length from the records of several seeds."""

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
class LossRow:
    """What several seeds of the same training came to, by length; `seeds` has the losses of each."""

    label: str
    seeds: Mapping[int, Mapping[int, float]]

    @property
    def losses(self) -> dict[int, Spread]:
        """The spread over seeds at each length."""
        lengths = next(iter(self.seeds.values()))
        return {
            length: Spread.of([losses[length] for losses in self.seeds.values()])
            for length in lengths
        }


def losses_of(record: Record) -> dict[int, float]:
    """The loss by length."""
    return {entry["length"]: entry["loss"] for entry in record["losses"]}


def spreads(
    records: Iterable[Record],
    label: Callable[[Record], str],
    values: Callable[[Record], Mapping[int, float]] = losses_of,
) -> dict[str, dict[int, Spread]]:
    """What seeds of the same training came to, by label and length.

    >>> record = {"config": {"scheme": "rope", "seed": 0}, "losses": [{"length": 256, "loss": 1.5}]}
    >>> print(spreads([record], label=scheme_of)["rope"][256])
    1.500
    """
    by_label: dict[str, list[Mapping[int, float]]] = {}
    for record in records:
        by_label.setdefault(label(record), []).append(values(record))
    return {
        name: {length: Spread.of([seed[length] for seed in seeds]) for length in seeds[0]}
        for name, seeds in by_label.items()
    }


def loss_rows(records: Iterable[Record], label: Callable[[Record], str]) -> list[LossRow]:
    """Records with the same label in one row, the rows in the order in which labels first come.

    >>> record = {"config": {"scheme": "rope", "seed": 0}, "losses": [{"length": 256, "loss": 1.5}]}
    >>> [row] = loss_rows([record], label=scheme_of)
    >>> print(row.label, row.losses[256])
    rope 1.500
    """
    rows: dict[str, dict[int, dict[int, float]]] = {}
    for record in records:
        rows.setdefault(label(record), {})[record["config"]["seed"]] = losses_of(record)
    return [LossRow(name, seeds) for name, seeds in rows.items()]


def scheme_of(record: Record) -> str:
    """The scheme that a record is of."""
    return str(record["config"]["scheme"])


def option_of(record: Record, name: str) -> str:
    """The value of an option of the scheme that a record is of, with all its digits."""
    return repr(float(record["config"]["scheme_options"][name])).removesuffix(".0")
