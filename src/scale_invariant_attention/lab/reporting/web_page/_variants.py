"""Variants, the seeds of one training under a label, and sweeps, variants that differ in one option.

Labels are given once for the whole page: a run has the same label in every table and chart, and no two
variants share one.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from statistics import mode
from typing import Any

from .... import schemes
from ....training import TrainingConfig
from ....training.training_data import TEXT
from ..drawing import title_of
from ._entries import Entry, flat, shown

# The options of a scheme among the fields of a configuration.
OPTION = "scheme_options."

# Fields that are not in labels: the seed, the model to start from, and two that are named otherwise.
UNNAMED = ("seed", "start", "scheme", "task")

# An option is swept if a scheme has been trained with at least this many values of it.
SWEPT = 3

# A field or an option, and its default, which is another in other schemes.
Setting = tuple[str, str]


@dataclass(frozen=True)
class Variant:
    """Seeds of one training.

    `task` is named if it is not text and the page has several, `words` are the settings that differ from
    the `usual` ones of the task, and `run` is named if a training was repeated with the same seed.
    """

    entries: Sequence[Entry]
    usual: Mapping[Setting, str]
    task: str = ""
    words: tuple[str, ...] = ()
    run: str = ""

    @property
    def label(self) -> str:
        """Name of the variant in tables and legends."""
        name = ", ".join(filter(None, (title_of(self.scheme), self.task, *self.words)))
        return f"{name} ({self.run})" if self.run else name

    @property
    def is_plain(self) -> bool:
        """Whether all settings are the usual ones."""
        return not self.words and not self.run

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
    """Variants of a scheme that differ from its main one in one numeric option, by its value."""

    main: Variant
    option: str
    variants: Mapping[float, Variant]


def variants_of(entries: Sequence[Entry]) -> list[Variant]:
    """Entries with the same settings except for their seeds, in the order in which they come.

    A seed that appears again is not another seed: it is a variant of its own.
    """
    tasks = list(dict.fromkeys(entry.config.task for entry in entries))
    variants = [
        it
        for task in tasks
        for it in _variants_of_task(
            [entry for entry in entries if entry.config.task == task],
            "" if task == TEXT or len(tasks) == 1 else task,
        )
    ]
    order = {id(entry): number for number, entry in enumerate(entries)}
    return _distinct(sorted(variants, key=lambda it: order[id(it.entries[0])]))


def _variants_of_task(entries: Sequence[Entry], task: str) -> list[Variant]:
    usual = usual_settings(entries)
    grouped: dict[str, list[list[Entry]]] = {}
    for entry in entries:
        repetitions = grouped.setdefault(_identity(entry.config), [])
        for seeds in repetitions:
            if entry.seed not in {it.seed for it in seeds}:
                seeds.append(entry)
                break
        else:
            repetitions.append([entry])
    return [
        Variant(seeds, usual, task, _unusual(seeds[0].config, usual))
        for repetitions in grouped.values()
        for seeds in repetitions
    ]


def _unusual(config: TrainingConfig, usual: Mapping[Setting, str]) -> tuple[str, ...]:
    """The settings that are not as usual, each in two words."""
    return tuple(
        f"{setting[0].rpartition('.')[2]} {value}"
        for setting, value in settings_of(config).items()
        if value != usual[setting]
    )


def _distinct(variants: Sequence[Variant]) -> list[Variant]:
    """Name the run of variants with the same label, except for the first that has several seeds."""
    counts = Counter(variant.label for variant in variants)
    names = Counter(entry.name for variant in variants for entry in variant.entries)
    several = {it.label: it for it in reversed(variants) if len(it.entries) > 1}
    found = []
    for variant in variants:
        label, first = variant.label, variant.entries[0]
        run = first.name if names[first.name] == 1 else first.source
        keeps = counts[label] == 1 or several.get(label) is variant
        found.append(variant if keeps else replace(variant, run=run))
    return found


def usual_settings(entries: Sequence[Entry]) -> dict[Setting, str]:
    """The value that most entries have of each setting, the default where it is among these.

    >>> config = TrainingConfig(scheme="p-rope", scheme_options={"base": 16.0})
    >>> usual = usual_settings([Entry(name="a", source="a", config=config, origins=[])])
    >>> usual["scheme_options.base", "1024"], usual["steps", "500"]
    ('16', '500')
    """
    values: dict[Setting, list[str]] = {}
    for entry in entries:
        for setting, value in settings_of(entry.config).items():
            values.setdefault(setting, []).append(value)
    # Of values that are as frequent, `mode` takes the first.
    return {it: mode(sorted(found, key=it[1].__ne__)) for it, found in values.items()}


def sweeps_of(variants: Sequence[Variant]) -> list[Sweep]:
    """The options of which a scheme has at least three values, all else being as in its main variant."""
    main: dict[str, Variant] = {}
    # Stable: of variants with as many seeds and as few unusual settings, the first.
    for variant in sorted(variants, key=lambda it: (-len(it.entries), len(it.words))):
        main.setdefault(variant.scheme, variant)
    sweeps = []
    for usual in main.values():
        by_option: dict[str, dict[float, Variant]] = {}
        ours, here = options_of(usual.config), _numbers(usual.config)
        for other in (it for it in variants if it.scheme == usual.scheme and not it.run):
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


def options_of(config: TrainingConfig) -> dict[Setting, str]:
    """All options of a configuration's scheme, given or not, in words."""
    defaults = _values(config.scheme, config.length, {})
    values = _values(config.scheme, config.length, config.scheme_options)
    return {(f"{OPTION}{name}", shown(defaults[name])): shown(it) for name, it in values.items()}


def _values(scheme: str, train_length: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a scheme as its slots hold them: they know the defaults that depend on others."""
    entry = schemes.entry(scheme)
    length = {"train_length": train_length} if "train_length" in entry.options else {}
    built: Any = schemes.get(scheme, **given, **length)
    values = entry.defaults | dict(given)
    one = isinstance(built, schemes.Scheme)
    slots = (built.rotary, built.query_scale, built.distance) if one else ()
    for slot in filter(is_dataclass, slots):
        values |= {it.name: getattr(slot, it.name) for it in fields(slot) if it.name in values}
    # The length of the training is a field of its own.
    return {name: value for name, value in values.items() if name not in length}


def _numbers(config: TrainingConfig) -> dict[str, float]:
    """The options that are numbers."""
    values = _values(config.scheme, config.length, config.scheme_options)
    return {f"{OPTION}{name}": float(it) for name, it in values.items() if _is_number(it)}


def _fields(config: TrainingConfig) -> dict[Setting, str]:
    """The fields that labels name, apart from the options of its scheme, in words."""
    defaults = dict(flat(TrainingConfig()))
    return {
        (name, shown(defaults.get(name))): shown(value)
        for name, value in flat(config)
        if name not in UNNAMED and not name.startswith(OPTION)
    }


def settings_of(config: TrainingConfig) -> dict[Setting, str]:
    """All settings that labels can name, in words."""
    return options_of(config) | _fields(config)


def _identity(config: TrainingConfig) -> str:
    """All settings except for the seed, also where it is the last number in the name of the start."""
    start = re.sub(rf"(?<!\d){config.seed}(?=\D*$)", "SEED", config.start or "")
    return json.dumps([config.scheme, start, sorted(settings_of(config).items())])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
