"""Sweeps: one option changed, and the scale's own value trained once for all experiments."""

import pytest

from scale_invariant_attention.lab.experiments import sweeps, table1
from scale_invariant_attention.lab.experiments.scales import SCALES


@pytest.mark.parametrize("option", sweeps.VALUES)
def test_only_the_option_differs_and_the_scales_own_value_is_table_1(option):
    scale = SCALES["mini"]
    trials = sweeps.trials(scale, option)
    values = [trial.config.scheme_options[option] for trial in trials]
    assert tuple(values) == sweeps.VALUES[option]
    own = trials[values.index(getattr(scale, option))]
    assert own in table1.trials(scale)
    for trial in trials:
        options = {**trial.config.scheme_options, option: own.config.scheme_options[option]}
        assert {**trial.config.to_dict(), "scheme_options": options} == own.config.to_dict()
    assert len({trial.name for trial in trials}) == len(trials)
