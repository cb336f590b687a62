"""Table 1: the same for every scheme but for what makes it that scheme."""

import pytest

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.experiments import table1
from scale_invariant_attention.lab.experiments.scales import SCALES
from scale_invariant_attention.schemes.distance import ScaleInvariant
from scale_invariant_attention.schemes.rotary import TruncatedRoPE

BOTH = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)


@BOTH
def test_every_scheme_and_seed_has_a_trial_with_the_same_data_and_training(scale):
    trials = table1.trials(scale)
    assert len(trials) == len({trial.name for trial in trials}) == 12 * 3
    assert [trial.config.scheme for trial in trials[:12]] == list(schemes.names())
    for trial in trials:
        fields = trial.config.to_dict()
        same = {k: v for k, v in fields.items() if k not in ("scheme", "scheme_options", "seed")}
        assert same == {k: v for k, v in trials[0].config.to_dict().items() if k in same}


@BOTH
def test_base_and_tau_are_the_same_wherever_there_is_one(scale):
    slots = [trial.config.model_config().slots for trial in table1.trials(scale, seeds=(0,))]
    truncated = [each.rotary.base for each in slots if isinstance(each.rotary, TruncatedRoPE)]
    transformed = [each.distance.tau for each in slots if isinstance(each.distance, ScaleInvariant)]
    assert truncated == [scale.base] * 3
    assert transformed == [scale.tau] * 3


@BOTH
def test_lengths_are_the_trained_one_and_beyond(scale):
    (trial,) = table1.trials(scale, ("rope",), seeds=(0,))
    length = trial.config.length
    assert trial.evaluation.lengths == (length, 4 * length, 16 * length)


def test_the_paper_has_its_own_base_and_tau():
    (trial,) = table1.trials(SCALES["paper"], ("scale-invariant-p-rope",), seeds=(0,))
    assert trial.config.scheme_options == {"base": 1024.0, "tau": 10.0}
    assert trial.config.model_config().slots == schemes.get("scale-invariant-p-rope")


def test_changes_are_for_all():
    trials = table1.trials(SCALES["mini"], seeds=(0,), changes={"steps": 7})
    assert {trial.config.steps for trial in trials} == {7}
