"""Entries of the page, one per run or record, and the variants and sweeps that they form."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ....data.needles import NeedleFormat
from ....evaluation import LengthLoss, PositionLoss
from ....training import TrainingConfig
from ...measurements import LengthAttention, NeedleCell, NeedleShare, RecallShare
from ..drawing import title_of

# Fields that may differ between the seeds of one training.
SEED_FIELDS = ("seed", "start")

# An option is swept if a scheme has been trained with at least this many values of it.
SWEPT = 3

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class MeasuredOn:
    """The data of a measurement; only measurements on the same data can be compared."""

    data: str = ""
    fingerprint: str | None = None
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
        words = [f"the validation split of {self.data}"] if self.data else []
        counts = {
            "tokens": self.tokens,
            "documents": self.documents,
            "examples": self.examples,
            "texts": self.contexts,
        }
        return ", ".join(words + [f"{count:,} {noun}" for noun, count in counts.items() if count])


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
    attention: Measurement[LengthAttention] | None = None

    @property
    def scheme(self) -> str:
        """Name of the scheme."""
        return self.config.scheme

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.config.seed


@dataclass(frozen=True)
class Variant:
    """Seeds of one training under a label; `is_usual` if the label is that of its scheme alone."""

    label: str
    entries: Sequence[Entry]
    is_usual: bool

    @property
    def scheme(self) -> str:
        """Name of the scheme."""
        return self.entries[0].scheme

    @property
    def config(self) -> TrainingConfig:
        """The configuration of the first seed."""
        return self.entries[0].config

    @property
    def states(self) -> str:
        """In what ways its runs are unfinished."""
        return "; ".join(sorted({entry.state for entry in self.entries if entry.state}))


@dataclass(frozen=True)
class Sweep:
    """Variants of a scheme that differ in one numeric option, by its value."""

    scheme: str
    option: str
    variants: Mapping[float, Variant]


def variants_of(entries: Sequence[Entry]) -> list[Variant]:
    """Entries with the same configuration except for their seeds, in the order in which they come.

    The variant of a scheme with the most seeds has its title; others add what differs from it. A seed
    that appears again is not another seed: it stands by itself, with its source.
    """
    grouped: dict[str, list[Entry]] = {}
    repeated: list[Entry] = []
    for entry in entries:
        seeds = grouped.setdefault(_identity(entry.config), [])
        (repeated if entry.seed in {it.seed for it in seeds} else seeds).append(entry)
    usual: dict[str, list[Entry]] = {}
    for seeds in grouped.values():
        if len(seeds) > len(usual.get(seeds[0].scheme, ())):
            usual[seeds[0].scheme] = seeds
    return [
        *(_variant(seeds, usual[seeds[0].scheme][0]) for seeds in grouped.values()),
        *(Variant(f"{title_of(it.scheme)} ({it.source})", [it], False) for it in repeated),
    ]


def sweeps_of(variants: Sequence[Variant]) -> list[Sweep]:
    """The options of which a scheme has at least three values, all else being as usual."""
    sweeps = []
    for usual in variants:
        if not usual.is_usual:
            continue
        by_option: dict[str, dict[float, Variant]] = {}
        for other in variants:
            if other.scheme != usual.scheme or other.is_usual:
                continue
            here, there = dict(flat(usual.config)), dict(flat(other.config))
            different = differing(usual.config, other.config)
            if len(different) != 1:
                continue
            [name] = different
            values = (here.get(name), there.get(name))
            if name.startswith("scheme_options.") and all(map(_is_number, values)):
                by_value = by_option.setdefault(name, {float(here[name]): usual})
                by_value[float(there[name])] = other
        sweeps += [
            Sweep(usual.scheme, name.removeprefix("scheme_options."), dict(sorted(it.items())))
            for name, it in by_option.items()
            if len(it) >= SWEPT
        ]
    return sweeps


def flat(config: TrainingConfig) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration; those of its mappings with a dot, as "scheme_options.tau"."""
    for name, value in config.to_dict().items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", it) for inner, it in value.items())
        else:
            yield name, value


def differing(first: TrainingConfig, second: TrainingConfig) -> list[str]:
    """The fields in which two configurations differ, except those that seeds may differ in."""
    here, there = dict(flat(first)), dict(flat(second))
    return [
        name
        for name in {**here, **there}
        if name not in SEED_FIELDS and _text(here.get(name)) != _text(there.get(name))
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


def _variant(seeds: list[Entry], usual: Entry) -> Variant:
    fields = dict(flat(seeds[0].config))
    different = differing(usual.config, seeds[0].config)
    labels = [f"{name.rpartition('.')[2]} {shown(fields.get(name))}" for name in different]
    return Variant(", ".join((title_of(usual.scheme), *labels)), seeds, not labels)


def _identity(config: TrainingConfig) -> str:
    fields = {name: value for name, value in flat(config) if name not in SEED_FIELDS}
    return json.dumps({name: _text(fields[name]) for name in sorted(fields)})


def _text(value: Any) -> str:
    """A text that is the same for equal values, such as 16 and 16.0."""
    return json.dumps(float(value) if _is_number(value) else value, sort_keys=True, default=str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
