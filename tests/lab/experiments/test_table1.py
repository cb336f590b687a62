"""Table 1, its sweeps and its attention: trials differ in what is compared and in nothing else."""

import pytest
from own_schemes import OWN, own_scheme

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.experiments.catalogue import ATTENTION_SCHEMES, SWEPT_VALUES
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.table1 import (
    SCALES,
    attention_trials,
    loss_trials,
    sweep_trials,
)
from scale_invariant_attention.lab.experiments.trials import find_record
from scale_invariant_attention.lab.seeds import scheme_of, seed_rows
from scale_invariant_attention.lab.tables import length_table, markdown
from scale_invariant_attention.schemes.distance import ScaleInvariant
from scale_invariant_attention.schemes.rotary import TruncatedRoPE

BOTH = pytest.mark.parametrize("scale", SCALES)


@BOTH
def test_every_scheme_and_seed_has_a_trial_with_the_same_data_and_training(scale):
    trials = loss_trials(scale)
    assert len(trials) == len({trial.name for trial in trials}) == len(schemes.names()) * 3
    assert [trial.config.scheme for trial in trials[: len(schemes.names())]] == list(
        schemes.names()
    )
    for trial in trials:
        fields = trial.config.to_dict()
        same = {k: v for k, v in fields.items() if k not in ("scheme", "scheme_options", "seed")}
        assert same == {k: v for k, v in trials[0].config.to_dict().items() if k in same}


@BOTH
def test_base_and_tau_are_the_same_wherever_there_is_one(scale):
    patterns = [trial.config.model_config().scheme for trial in loss_trials(scale, seeds=(0,))]
    slots = [slots for scheme in patterns for slots in scheme.pattern]
    truncated = [each.rotary.base for each in slots if isinstance(each.rotary, TruncatedRoPE)]
    transformed = [each.distance for each in slots if isinstance(each.distance, ScaleInvariant)]
    assert set(truncated) == {SCALES[scale].base}
    assert {it.tau for it in transformed if it.highest_tau is None} == {SCALES[scale].tau}
    assert {(it.tau, it.highest_tau) for it in transformed if it.highest_tau} == {(1.0, 30.0)}


@BOTH
def test_lengths_are_the_training_length_and_beyond(scale):
    (trial,) = loss_trials(scale, ("rope",), seeds=(0,))
    length = trial.config.length
    assert trial.evaluation.lengths == (length, 4 * length, 16 * length)


def test_the_paper_has_its_own_base_and_tau():
    (trial,) = loss_trials("paper", ("scale-invariant-p-rope",), seeds=(0,))
    assert trial.config.scheme_options == {"base": 1024.0, "tau": 10.0}
    assert trial.config.model_config().scheme == schemes.get("scale-invariant-p-rope")


def test_changes_apply_to_all():
    trials = loss_trials("mini", seeds=(0,), changes={"steps": 7})
    assert {trial.config.steps for trial in trials} == {7}


@pytest.mark.parametrize("option", SWEPT_VALUES)
def test_only_the_swept_option_differs_and_the_usual_value_is_table_1(option):
    trials = sweep_trials(option)
    values = [trial.config.scheme_options[option] for trial in trials]
    assert tuple(values) == SWEPT_VALUES[option]
    usual = trials[values.index(getattr(SCALES["mini"], option))]
    assert usual in loss_trials()
    for trial in trials:
        options = {**trial.config.scheme_options, option: usual.config.scheme_options[option]}
        assert {**trial.config.to_dict(), "scheme_options": options} == usual.config.to_dict()
    assert len({trial.name for trial in trials}) == len(trials)


def test_attention_is_that_of_the_models_of_table_1():
    models = {trial.name: trial for trial in loss_trials(seeds=(0,))}
    assert [trial.training for trial in attention_trials()] == [
        models[f"{name}-seed-0"] for name in ATTENTION_SCHEMES
    ]


SMALL = {
    **{"steps": 2, "batch_size": 2, "width": 32, "heads": 2, "layers": 1, "length": 32},
    **{"validation_lengths": (32,), "validation_tokens": 64},
}


def test_attention_is_recorded(tmp_path):
    evaluation = {"lengths": (32, 150), "contexts": 2}
    trials = attention_trials("mini", ("rope", "rope-ntk"), (0,), SMALL, evaluation)
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["rope-seed-0"]
    for trial in trials:
        record = find_record(trial, tmp_path / "results")
        assert [it.edges for it in record.attention] == [(0, 10, 32), (0, 10, 100, 150)]
        assert record.recent_share_by_length()[32] == 1.0
        assert 0 < record.recent_share_by_length()[150] < 1
        assert record.scheme == trial.config.scheme


def test_a_registered_scheme_is_trained_recorded_and_in_the_table(tmp_path):
    evaluation = {"lengths": (32, 64), "tokens": 128}
    with own_scheme() as name:
        assert name in {trial.config.scheme for trial in loss_trials()}
        trials = loss_trials("mini", ("rope", name), (0,), SMALL, evaluation)
        run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
        records = [find_record(trial, tmp_path / "results") for trial in trials]
        titles = {record.scheme: schemes.entry(record.scheme).title for record in records}
        rows = seed_rows(records, scheme_of, type(records[0]).losses_by_length)
        table = markdown(length_table(rows, "scheme", min, titles=titles))
    losses = records[1].losses_by_length()
    [line] = [line for line in table.splitlines() if OWN.title in line]
    assert all(f"{loss:.3f}" in line for loss in losses.values())
