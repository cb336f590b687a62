"""Running trials: on several cores, recorded once, and resumed."""

import json
from functools import partial

import pytest
from tiny_training import tiny_config

from scale_invariant_attention.lab.experiments import running
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.experiments.running import (
    run_in_turn,
    run_side_by_side,
    steps_done,
    total_steps,
)
from scale_invariant_attention.lab.experiments.trials import (
    DifferentRecordError,
    TrainingTrial,
    find_record,
)
from scale_invariant_attention.training import DivergedError, read_metrics, train

EVALUATION = LossEvaluation(lengths=(32, 128), tokens=512)


def trial(scheme, **changes):
    config = tiny_config(**({"scheme": scheme, "steps": 3, "validate_every": 0} | changes))
    return TrainingTrial(f"{scheme}-seed-{config.seed}", config, EVALUATION)


def test_trials_are_recorded_and_not_done_twice(tmp_path, monkeypatch):
    runs, results = tmp_path / "runs", tmp_path / "results"
    both = [trial("rope"), trial("alibi")]
    steps, done = [], []
    run_side_by_side(
        both, runs, results, workers=2, watch=steps.append, done=lambda t, r: done.append(t.name)
    )
    assert sorted(done) == ["alibi-seed-0", "rope-seed-0"]
    assert steps[-1] == {"rope-seed-0": 3, "alibi-seed-0": 3}
    record = find_record(both[0], results)
    assert [row.length for row in record.losses] == [32, 128]
    assert record.by_position[-1].stop == 129
    metrics = read_metrics(runs / "rope-seed-0")
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert record.training.loss == pytest.approx(losses, rel=1e-4)
    assert len(losses) == len(record.training.gradient_norm) == 3
    written = json.loads((results / "rope-seed-0.json").read_text())
    assert written["validation"] == [line for line in metrics if "validation" in line] != []
    assert written["config"]["scheme"] == "rope"
    assert {"commit", "torch", "cpu"} <= written["provenance"].keys()

    # All are recorded: nothing is left to start.
    monkeypatch.setattr(running, "Worker", None)
    again = []
    run_side_by_side(both, runs, results, workers=1, done=lambda t, r: again.append(r))
    assert again[0] == record


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}])
def test_a_record_of_another_trial_is_not_overwritten(tmp_path, change):
    wanted = trial("rope")
    config = tiny_config(**({"scheme": "rope", "steps": 3} | change))
    other = TrainingTrial(wanted.name, config, EVALUATION)
    run_in_turn([other], tmp_path / "other", tmp_path, device="cpu")
    assert find_record(other, tmp_path) is not None
    (name,) = change
    with pytest.raises(DifferentRecordError, match=f"config.{name} is .* there"):
        run_side_by_side([trial("alibi"), wanted], tmp_path / "runs", tmp_path, workers=1)
    assert not (tmp_path / "runs").exists()


EXPLODING = TrainingTrial("exploding", tiny_config(head_rate=1e4, checkpoint_every=0), EVALUATION)


def test_a_trial_that_fails_says_why_and_does_not_wait_for_the_others(tmp_path):
    endless = trial("rope", steps=10**6, checkpoint_every=10**6)
    with pytest.raises(DivergedError, match="the loss is"):
        run_side_by_side([endless, EXPLODING], tmp_path / "runs", tmp_path, workers=2)
    assert not (tmp_path / "exploding.json").exists()


def test_a_training_that_exists_is_resumed(tmp_path):
    """A trial trains what `train` trains: a run in its folder is its own."""
    one = trial("rope")
    train(one.config, tmp_path / "runs" / one.name, device="cpu")
    before = (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes()
    run_in_turn([one], tmp_path / "runs", tmp_path / "results", device="cpu")
    assert (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes() == before


def test_in_turn_records_the_same_as_side_by_side(tmp_path):
    both = [trial("rope"), trial("alibi")]
    run_side_by_side(both[:1], tmp_path / "runs", tmp_path / "results", workers=1)
    done, notices = [], []
    run_in_turn(
        both,
        tmp_path / "other-runs",
        tmp_path / "other",
        device="cpu",
        notice=notices.append,
        done=lambda trial, record: done.append(trial.name),
    )
    assert done == ["rope-seed-0", "alibi-seed-0"]
    assert notices[0].startswith("rope-seed-0, in ")
    first, second = (find_record(both[0], tmp_path / name) for name in ("results", "other"))
    for here, there in zip(first.losses, second.losses, strict=True):
        assert here.loss == pytest.approx(there.loss, rel=1e-5)


def test_schemes_that_train_alike_share_a_training(tmp_path):
    changes = {"steps": 3, "validate_every": 1, "validation_lengths": (32, 128)}
    rope = TrainingTrial("rope-seed-0", tiny_config(scheme="rope", **changes), EVALUATION)
    config = tiny_config(scheme="rope-ntk", **changes)
    shared = TrainingTrial("rope-ntk-seed-0", config, EVALUATION, trained_as=rope)
    alone = TrainingTrial("alone", config, EVALUATION)
    run_side_by_side([shared, rope], tmp_path / "runs", tmp_path / "results", workers=1)
    run_in_turn([alone], tmp_path / "runs", tmp_path / "results", device="cpu")
    assert {run.name for run in (tmp_path / "runs").iterdir()} == {"rope-seed-0", "alone"}
    found, expected, plain = (find_record(it, tmp_path / "results") for it in (shared, alone, rope))
    for length in (0, 1):
        loss = found.losses[length].loss
        assert loss == pytest.approx(expected.losses[length].loss, rel=1e-5)
    assert found.losses[0] == plain.losses[0] and found.losses[1] != plain.losses[1]
    assert found.by_position != plain.by_position
    assert found.training == plain.training
    assert (found.trained_as, expected.trained_as) == ("rope-seed-0", "alone")
    # Longer lengths were validated as RoPE reads them.
    assert [it.validation.keys() for it in found.validation] == [{32}] * 3
    assert [it.validation[32] for it in found.validation] == [
        it.validation[32] for it in plain.validation
    ]
    # The same one after the other.
    run_in_turn([rope, shared], tmp_path / "others", tmp_path / "other", device="cpu")
    assert {run.name for run in (tmp_path / "others").iterdir()} == {"rope-seed-0"}
    again = find_record(shared, tmp_path / "other")
    assert again.losses[1].loss == pytest.approx(found.losses[1].loss, rel=1e-5)


def test_what_cannot_be_evaluated_or_recorded_is_refused_before_training(tmp_path):
    config = tiny_config(steps=10**6)
    (tmp_path / "file").touch()
    for evaluation, results, message in (
        (LossEvaluation((32, 33), 256), tmp_path, "need a multiple of 1056"),
        (EVALUATION, tmp_path / "file", "cannot be written to"),
    ):
        for run in (partial(run_side_by_side, workers=1), partial(run_in_turn, device="cpu")):
            with pytest.raises((ValueError, OSError), match=message):
                run([TrainingTrial("endless", config, evaluation)], tmp_path / "runs", results)
    assert not (tmp_path / "runs").exists()


def test_a_shared_training_counts_once_in_the_steps():
    rope = trial("rope")
    shared = TrainingTrial("yarn-seed-0", rope.config, EVALUATION, trained_as=rope)
    tuned = TrainingTrial("needles", rope.config, EVALUATION, starts_from=rope)
    trials = [rope, shared, tuned]
    assert total_steps(trials) == 6
    assert steps_done(trials, {}) == 0
    assert steps_done(trials, {"rope-seed-0": 2, "yarn-seed-0": 2, "needles": 0}) == 2
    assert steps_done(trials, {"rope-seed-0": 3, "yarn-seed-0": 3, "needles": 4}) == 4
