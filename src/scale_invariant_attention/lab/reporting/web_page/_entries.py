"""Entries of the page, one per run or record, and the variants and sweeps that they form."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from statistics import mode
from typing import Any, Generic, TypeVar

from .... import schemes
from ....data.needles import NeedleFormat
from ....evaluation import LengthLoss, PositionLoss
from ....training import TrainingConfig
from ...measurements import LengthAttention, NeedleCell, NeedleShare, RecallShare
from ..drawing import title_of

# Fields that may differ between the seeds of one training.
SEED_FIELDS = ("seed", "start")

# The options of a scheme among the fields of a configuration.
OPTION = "scheme_options."

# An option of a scheme and its default, which is another in other schemes.
Option = tuple[str, str]

# An option is swept if a scheme has been trained with at least this many values of it.
SWEPT = 3

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
        counts = {
            f"tokens{after}": self.tokens,
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
    """Variants of a scheme that differ from the usual one in one numeric option, by its value."""

    usual: Variant
    option: str
    variants: Mapping[float, Variant]


def usual_options(entries: Sequence[Entry]) -> dict[Option, str]:
    """The value that most entries have of each option, the default where it is among these.

    >>> config = TrainingConfig(scheme="p-rope", scheme_options={"base": 16.0})
    >>> usual_options([Entry(name="a", source="a", config=config, origins=[])])
    {('scheme_options.base', '1024'): '16', ('scheme_options.fraction', 'none'): 'none', ...}
    """
    values: dict[Option, list[str]] = {}
    for entry in entries:
        for option, value in options_of(entry.config).items():
            values.setdefault(option, []).append(value)
    # Of values that are as frequent, `mode` takes the first.
    return {it: mode(sorted(found, key=it[1].__ne__)) for it, found in values.items()}


def variants_of(
    entries: Sequence[Entry], usual: Mapping[Option, str] | None = None
) -> list[Variant]:
    """Entries with the same settings except for their seeds, in the order in which they come.

    A label has every option that differs from the `usual` ones, by default those of the entries, and
    every other field that differs from the variant of the scheme with the most seeds. A seed that
    appears again is not another seed: it stands by itself, with its source.
    """
    expected = usual_options(entries) if usual is None else usual
    grouped: dict[str, list[Entry]] = {}
    repeated: list[Entry] = []
    for entry in entries:
        seeds = grouped.setdefault(_identity(entry.config), [])
        (repeated if entry.seed in {it.seed for it in seeds} else seeds).append(entry)
    unusual = {
        name: {
            it: value for it, value in options_of(seeds[0].config).items() if value != expected[it]
        }
        for name, seeds in grouped.items()
    }
    main: dict[str, list[Entry]] = {}
    # Stable: of variants with as many seeds and as few unusual options, the first.
    for name in sorted(grouped, key=lambda it: (-len(grouped[it]), len(unusual[it]))):
        main.setdefault(grouped[name][0].scheme, grouped[name])

    def variant(name: str, seeds: list[Entry]) -> Variant:
        config, nearest = seeds[0].config, main[seeds[0].scheme]
        usually = _fields(nearest[0].config)
        words = {option: value for (option, _), value in unusual[name].items()}
        words |= {it: value for it, value in _fields(config).items() if value != usually.get(it)}
        labels = [f"{it.rpartition('.')[2]} {value}" for it, value in words.items()]
        return Variant(", ".join((title_of(config.scheme), *labels)), seeds, seeds is nearest)

    return [
        *(variant(name, seeds) for name, seeds in grouped.items()),
        *(Variant(f"{title_of(it.scheme)} ({it.source})", [it], False) for it in repeated),
    ]


def sweeps_of(variants: Sequence[Variant]) -> list[Sweep]:
    """The options of which a scheme has at least three values, all else being as usual."""
    sweeps = []
    for usual in (it for it in variants if it.is_usual):
        by_option: dict[str, dict[float, Variant]] = {}
        ours, here = options_of(usual.config), _numbers(usual.config)
        for other in (it for it in variants if it.scheme == usual.scheme):
            theirs, there = options_of(other.config), _numbers(other.config)
            different = [name for (name, _), value in ours.items() - theirs.items()]
            is_swept = len(different) == 1 and set(different) <= here.keys() & there.keys()
            if is_swept and _fields(other.config) == _fields(usual.config):
                [name] = different
                by_option.setdefault(name, {here[name]: usual})[there[name]] = other
        sweeps += [
            Sweep(usual, name.removeprefix(OPTION), dict(sorted(it.items())))
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


def _values(scheme: str, train_length: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a scheme as its slots hold them: they know the defaults that depend on others."""
    entry = schemes.entry(scheme)
    length = {"train_length": train_length} if "train_length" in entry.options else {}
    slots: Any = schemes.get(scheme, **given, **length)
    signature = inspect.signature(entry.build)
    values = {name: it.default for name, it in signature.parameters.items()} | dict(given)
    for slot in filter(is_dataclass, (slots.rotary, slots.query_scale, slots.distance)):
        values |= {it.name: getattr(slot, it.name) for it in fields(slot) if it.name in values}
    # The length of the training is a field of its own.
    return {name: value for name, value in values.items() if name not in length}


def options_of(config: TrainingConfig) -> dict[Option, str]:
    """All options of a configuration's scheme, given or not, in words."""
    defaults = _values(config.scheme, config.length, {})
    values = _values(config.scheme, config.length, config.scheme_options)
    return {(f"{OPTION}{name}", shown(defaults[name])): shown(it) for name, it in values.items()}


def _numbers(config: TrainingConfig) -> dict[str, float]:
    """The options that are numbers."""
    values = _values(config.scheme, config.length, config.scheme_options)
    return {f"{OPTION}{name}": float(it) for name, it in values.items() if _is_number(it)}


def _fields(config: TrainingConfig) -> dict[str, str]:
    """The fields that make a variant, apart from the options of its scheme, in words."""
    return {
        name: shown(value)
        for name, value in flat(config)
        if name not in SEED_FIELDS and not name.startswith(OPTION)
    }


def _identity(config: TrainingConfig) -> str:
    return json.dumps([sorted(options_of(config).items()), sorted(_fields(config).items())])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
