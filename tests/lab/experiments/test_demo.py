"""The demo's numbers of theory, and its trials."""

import math
from itertools import pairwise

import pytest

from scale_invariant_attention.lab.experiments import demo
from scale_invariant_attention.lab.experiments.recall import recall_trials
from scale_invariant_attention.lab.experiments.table1 import loss_trials


def test_decades_grow_vanish_or_stay():
    found = demo.decade_masses()
    plain, alibi, transformed = (
        found.masses[scheme] for scheme in ("plain", "ALiBi", "scale-invariant")
    )
    assert all(far == pytest.approx(10 * near) for near, far in pairwise(plain))
    assert alibi[-1] < 1e-10
    assert transformed[-1] == pytest.approx(found.limit, rel=1e-3)
    assert found.limit == pytest.approx(10 * math.exp(0.5) * math.log(10))


def test_the_trials_are_those_of_table_1_but_shorter():
    """The demo shows the same experiment in minutes."""
    whole = loss_trials("mini", demo.SCHEMES, seeds=(0,))
    shorter = {"steps", "validate_every", "validation_tokens", "validation_lengths"}
    for short, long in zip(demo.demo_loss_trials(), whole, strict=True):
        fields, others = short.config.to_dict(), long.config.to_dict()
        assert {name for name in fields if fields[name] != others[name]} == shorter
        assert short.evaluation.lengths == long.evaluation.lengths


def test_the_trials_of_recall_are_those_of_its_table_but_shorter():
    whole = recall_trials("mini", demo.SCHEMES, seeds=(0,))
    shorter = {"steps", "validate_every", "validation_tokens"}
    for short, long in zip(demo.demo_recall_trials(), whole, strict=True):
        fields, others = short.config.to_dict(), long.config.to_dict()
        assert {name for name in fields if fields[name] != others[name]} == shorter
        assert short.evaluation == long.evaluation
