"""Entries of the page, one per run or record, and their settings in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ....data.needles import NeedleFormat
from ....evaluation import LengthLoss, PositionLoss
from ....training import TrainingConfig
from ...measurements import LengthAttention, NeedleCell, NeedleShare, RecallShare, TaskScores

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class MeasuredOn:
    """The data of a measurement; only measurements on the same data can be compared."""

    data: str = ""
    split: str = "validation"
    fingerprint: str | None = None
    skip: int = 0
    task: str = ""
    options: Mapping[str, Any] | None = None
    form: NeedleFormat | None = None
    tokens: int = 0
    documents: int = 0
    longest: int = 0
    examples: int = 0
    contexts: int = 0
    recent: int = 0

    def __str__(self) -> str:
        words = [f"the {self.split} split of {self.data}"] if self.data else []
        after = f" after the first {self.skip:,}" if self.skip else ""
        counts = (
            ("token", self.tokens, after),
            ("document", self.documents, ""),
            ("example", self.examples, ""),
            ("text", self.contexts, ""),
        )
        words += [
            f"{count:,} {noun}{'' if count == 1 else 's'}{more}"
            for noun, count, more in counts
            if count
        ]
        return ", ".join(words)


@dataclass(frozen=True)
class Measurement(Generic[RowT]):
    """Rows of values, and what they were measured `on`."""

    on: MeasuredOn
    rows: Sequence[RowT]


@dataclass(frozen=True)
class StepLoss:
    """The loss of a training batch, or of validation at `length`, at a step."""

    step: int
    loss: float
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A training and the measurements of its model.

    `state` says in what way the run, or one of its measurements, is unfinished. `trained_as` names
    another entry if the weights are those of that one.
    """

    name: str
    source: str
    config: TrainingConfig
    origins: Sequence[Mapping[str, Any]]
    state: str | None = None
    trained_as: str | None = None
    seconds: float | None = None
    training: Measurement[StepLoss] | None = None
    validation: Measurement[StepLoss] | None = None
    losses: Measurement[LengthLoss] | None = None
    positions: Measurement[PositionLoss] | None = None
    needles: Measurement[NeedleShare] | None = None
    needle_cells: Measurement[NeedleCell] | None = None
    recall: Measurement[RecallShare] | None = None
    scores: Measurement[TaskScores] | None = None
    attention: Measurement[LengthAttention] | None = None

    @property
    def scheme(self) -> str:
        """Name of the scheme."""
        return self.config.scheme

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.config.seed


def flat(config: TrainingConfig) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration; those of its mappings with a dot, as "scheme_options.tau"."""
    for name, value in config.to_dict().items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", it) for inner, it in value.items())
        else:
            yield name, value


def shown(value: Any) -> str:
    """A value of a configuration in a word or two.

    Different numbers are different words.

    >>> shown(16.0), shown(0.1234567), shown(None), shown([256, 1024]), shown("rope")
    ('16', '0.1234567', 'none', '256, 1024', 'rope')
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    return str(value)
