"""Aggregation over seeds: rows, means and standard errors."""

from pathlib import Path
from statistics import mean, stdev

import pytest

from scale_invariant_attention.lab.records import Record, read_record
from scale_invariant_attention.lab.seeds import (
    SeedRow,
    Spread,
    option_value,
    scheme_of,
    seed_rows,
    with_common_seeds,
)
from scale_invariant_attention.training import TrainingConfig

RESULTS = Path(__file__).parents[2] / "results" / "mini-500"


def records(*names):
    return [read_record(RESULTS / f"{name}.json", TrainingConfig) for name in names]


def test_seeds_of_a_label_become_one_row():
    mine = records("alibi-seed-0", "rope-seed-0", "alibi-seed-1")
    rows = seed_rows(mine, scheme_of, Record.losses_by_length)
    assert list(rows) == ["alibi", "rope"]
    alibi = rows["alibi"]
    assert alibi.seeds == {0: mine[0].losses_by_length(), 1: mine[2].losses_by_length()}
    values = [losses[4096] for losses in alibi.seeds.values()]
    assert alibi.spreads[4096] == Spread(mean(values), pytest.approx(stdev(values) / 2**0.5), 2)
    assert rows["rope"].spreads[256].standard_error is None


def test_the_standard_error_is_that_of_the_mean():
    values = [1.0, 1.2, 1.7, 0.9]
    assert Spread.over(values).standard_error == pytest.approx(stdev(values) / 2)


def test_a_length_that_some_seeds_lack_is_over_the_others():
    row = SeedRow("rope", {0: {256: 1.0, 1024: 2.0}, 1: {256: 3.0}})
    assert row.spreads == {256: Spread(2.0, 1.0, 2), 1024: Spread(2.0, None, 1)}


def test_a_sweep_has_a_row_for_each_value():
    names = ("tau-0.01-seed-0", "tau-100-seed-0", "seed-0", "seed-1")
    mine = records(*(f"scale-invariant-p-rope-{name}" for name in names))
    rows = seed_rows(mine, lambda it: option_value(it, "tau"), Record.losses_by_length)
    assert {value: list(row.seeds) for value, row in rows.items()} == {
        0.01: [0],
        100.0: [0],
        10.0: [0, 1],
    }
    assert {value: list(row.seeds) for value, row in with_common_seeds(rows).items()} == {
        0.01: [0],
        100.0: [0],
        10.0: [0],
    }
