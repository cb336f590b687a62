"""Patterns of named schemes, which repeat over the layers of a model: names joined by commas."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ._entries import COMMA, NamedScheme
from .scheme import LayeredScheme, Scheme

# The option that the schemes of a pattern share.
TRAIN_LENGTH = "train_length"


class NamedPattern(NamedScheme):
    """An entry for names joined by commas, made of those of the names.

    Options of a scheme start with its name and a dot; the training length is the same for all.
    """

    @classmethod
    def of(cls, rows: Sequence[NamedScheme]) -> "NamedPattern":
        """The entry for a pattern of schemes."""
        runs = [(title, len(list(same))) for title, same in groupby(row.title for row in rows)]
        return cls(
            COMMA.join(row.name for row in rows),
            _Pattern(rows),
            ", ".join(title if count == 1 else f"{count} x {title}" for title, count in runs),
            "Layers alternate between these schemes.",
            "; ".join(dict.fromkeys(row.reference for row in rows if row.reference)),
            trained_as=COMMA.join(row.trained_as for row in rows),
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of all schemes, and their default values."""
        assert isinstance(self.build, _Pattern)
        return self.build.defaults


class _Pattern:
    """Builds the schemes of a pattern, each with its own options."""

    def __init__(self, rows: Sequence[NamedScheme]) -> None:
        self.rows = rows
        self.defaults = {
            _pattern_option(row.name, option): default
            for row in rows
            for option, default in row.defaults.items()
        }

    def __call__(self, **options: Any) -> LayeredScheme:
        pattern = []
        for row in self.rows:
            scheme = row.build(**self._options_of(row, options))
            if not isinstance(scheme, Scheme):
                raise ValueError(
                    f"a pattern must consist of schemes for one layer, and {row.name!r} is a pattern "
                    f"itself: use it alone"
                )
            pattern.append(scheme)
        return LayeredScheme(pattern)

    def _options_of(self, row: NamedScheme, given: Mapping[str, Any]) -> dict[str, Any]:
        names = {option: _pattern_option(row.name, option) for option in row.options}
        return {option: given[name] for option, name in names.items() if name in given}


def _pattern_option(scheme: str, option: str) -> str:
    return option if option == TRAIN_LENGTH else f"{scheme}.{option}"
