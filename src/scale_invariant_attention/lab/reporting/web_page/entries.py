"""What a page is made from: an entry for every run or record, however it was read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
