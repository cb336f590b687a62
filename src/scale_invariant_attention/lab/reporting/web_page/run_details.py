"""What each run was asked for and where it was made: once what all have in common, then the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .entries import Entry, flat
from .variants import shown, title_of


@dataclass(frozen=True)
class RunDetails:
    """A run or record, and the fields of its configuration that others have otherwise."""

    name: str
    source: str
    title: str
    seed: int
    state: str
    facts: Mapping[str, str]
    fields: Mapping[str, str]


def fields_in_common(entries: Sequence[Entry]) -> dict[str, str]:
    """Those that every configuration has with the same value."""
    configs = [dict(flat(entry.config)) for entry in entries]
    if not configs:
        return {}
    first, *others = configs
    missing = object()
    return {
        name: shown(value)
        for name, value in first.items()
        if all(other.get(name, missing) == value for other in others)
    }


def details_of(entries: Sequence[Entry]) -> list[RunDetails]:
    """One for each entry."""
    common = fields_in_common(entries)
    return [
        RunDetails(
            entry.name,
            entry.source,
            title_of(entry.scheme),
            entry.seed,
            entry.state or "finished",
            _facts(entry),
            {name: shown(it) for name, it in flat(entry.config) if name not in common},
        )
        for entry in entries
    ]


def _facts(entry: Entry) -> dict[str, str]:
    """Where it was made; a run that was resumed has each of its places."""
    facts: dict[str, str] = {}
    for origin in entry.origins:
        for name, value in origin.items():
            seen = facts.get(name)
            new = shown(value)
            facts[name] = new if seen is None or new in seen.split("; ") else f"{seen}; {new}"
    if entry.seconds is not None:
        facts["seconds of training"] = f"{entry.seconds:,.0f}"
    if entry.trained_as:
        facts["trained as"] = entry.trained_as
    return facts
