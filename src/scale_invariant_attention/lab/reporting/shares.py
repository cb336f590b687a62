"""Shares found by length, from records."""

from collections.abc import Iterable, Mapping
from typing import Any

from .losses import Record


def needles_found(record: Record) -> dict[int, float]:
    """The share of needles found, by length."""
    return _shares(record["needles"]["lengths"])


def values_recalled(record: Record) -> dict[int, float]:
    """The share of values recalled, by length.

    >>> values_recalled({"recall": [{"length": 64, "found": 3, "count": 4}]})
    {64: 0.75}
    """
    return _shares(record["recall"])


def _shares(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    return {row["length"]: row["found"] / row["count"] for row in rows}
