"""Paragraphs of generated pages: wrapping, lists in words, and the provenance of records."""

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from ..records import Record

LINE = 105


def filled(text: str) -> str:
    """A paragraph wrapped to the width of the page."""
    return fill(text, LINE, break_long_words=False, break_on_hyphens=False)


def listed(words: Sequence[str]) -> str:
    """A list in words.

    >>> listed(["one"]), listed(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return " and ".join([*([", ".join(words[:-1])] if words[:-1] else []), words[-1]])


def records_and_trainings(records: Sequence[Record[Any]]) -> str:
    """Number of records and of trainings."""
    return f"{len(records)} records of {len({it.trained_as for it in records})} trainings"


def first_date(records: Iterable[Record[Any]]) -> str:
    """The day of the earliest record."""
    return min(record.provenance.date for record in records)[:10]


def made_with(records: Iterable[Record[Any]], fact: str) -> str:
    """The values of a fact of provenance, such as "torch"."""
    return " and ".join(sorted({str(getattr(record.provenance, fact)) for record in records}))
