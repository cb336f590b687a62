"""Rows of losses: seeds gathered, means and errors as they should be."""

from statistics import stdev

import pytest
from small_records import record

from scale_invariant_attention.lab.reporting.losses import Spread, option_of, scheme_of, seed_rows


def test_seeds_of_a_label_become_one_row():
    records = [
        record("alibi", 0, (1.0, 2.0, 3.0)),
        record("rope", 0, (4.0, 5.0, 6.0)),
        record("alibi", 1, (1.5, 2.5, 4.0)),
    ]
    alibi, rope = seed_rows(records, scheme_of)
    assert (alibi.label, rope.label) == ("alibi", "rope")
    assert alibi.seeds[1] == {256: 1.5, 1024: 2.5, 4096: 4.0}
    assert alibi.spreads[4096] == Spread(3.5, pytest.approx(0.5), 2)
    assert rope.spreads[256] == Spread(4.0, None, 1)


def test_the_standard_error_is_that_of_the_mean():
    values = [1.0, 1.2, 1.7, 0.9]
    assert Spread.of(values).standard_error == pytest.approx(stdev(values) / 2)


def test_options_are_labels_too():
    assert option_of(record("scale-invariant-p-rope", 0, (1, 1, 1), tau=0.01), "tau") == "0.01"
