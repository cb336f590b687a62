"""What is recorded of a model's attention, by length."""

from collections.abc import Mapping
from typing import Any

from .losses import Record


def recent_shares(record: Record) -> dict[int, float]:
    """The share of attention on the nearest tokens, by length.

    >>> overall = {"recent_share": [{"mean": 0.5, "standard_error": 0.1}]}
    >>> recent_shares({"attention": [{"length": 256, "overall": overall}]})
    {256: 0.5}
    """
    return {it["length"]: it["overall"]["recent_share"][0]["mean"] for it in record["attention"]}


def range_entropies(record: Record, start: int, stop: int) -> dict[int, Mapping[str, Any]]:
    """The entropy inside a range, mean and error, at the lengths that hold the whole of it."""
    found: dict[int, Mapping[str, Any]] = {}
    for it in record["attention"]:
        edges = it["edges"]
        if start in edges and stop in edges and edges.index(stop) == edges.index(start) + 1:
            found[it["length"]] = it["overall"]["entropy"][edges.index(start)]
    return found
