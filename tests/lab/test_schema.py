"""Dataclasses from JSON and back: every type of a field, and numbers that do not exist."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from scale_invariant_attention.lab._schema import (
    NullableFloat,
    from_json,
    omitted_if_none,
    to_json,
)


@dataclass(frozen=True)
class Part:
    count: int
    mean: NullableFloat


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    by_length: Mapping[int, float]
    grid: tuple[tuple[NullableFloat, ...], ...]
    error: float | None
    note: str | None = omitted_if_none()


VALUES = {
    "parts": [{"count": 1, "mean": 0.5}, {"count": 2, "mean": None}],
    "by_length": {"256": 1.5},
    "grid": [[1.0, None]],
    "error": None,
}


def test_values_are_read_and_written_back():
    whole = from_json(Whole, VALUES)
    assert whole.parts[0] == Part(1, 0.5) and math.isnan(whole.parts[1].mean)
    assert whole.by_length == {256: 1.5} and math.isnan(whole.grid[0][1])
    assert to_json(whole) == VALUES
    assert to_json(from_json(Whole, VALUES | {"note": "x"})) == VALUES | {"note": "x"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parts": [{"count": True, "mean": 1}]},
            r"parts\[0\]\.count must be an integer, got True",
        ),
        ({"parts": [{"mean": 1}]}, r"parts\[0\]\.count is missing"),
        ({"parts": {}}, "parts must be a list"),
        ({"by_length": []}, "by_length must be an object"),
        ({"note": 1}, "note must be text, got 1"),
        ({"nodes": 1}, "nodes is no field of it .did you mean 'note'"),
    ],
)
def test_errors_name_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        from_json(Whole, VALUES | changes)


def test_only_numbers_that_may_not_exist_become_null():
    assert to_json(Part(1, math.nan)) == {"count": 1, "mean": None}
    assert math.isnan(to_json(Whole((), {1: math.nan}, (), None))["by_length"]["1"])
