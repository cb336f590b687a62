"""Edges of ranges."""

import pytest

from scale_invariant_attention.analysis import range_edges


@pytest.mark.parametrize(
    ("length", "ratio", "edges"),
    [
        (65_536, 10, (0, 10, 100, 1000, 10_000, 65_536)),
        (1000, 10, (0, 10, 100, 1000)),
        (5, 10, (0, 5)),
        (1, 2, (0, 1)),
        (20, 1.5, (0, 2, 3, 5, 8, 11, 17, 20)),
        (10, 1.01, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    ],
)
def test_edges(length, ratio, edges):
    assert range_edges(length, ratio) == edges


def test_ratios_must_be_above_one():
    with pytest.raises(ValueError, match="ratio must be greater than 1"):
        range_edges(100, 1.0)
