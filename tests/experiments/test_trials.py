"""Trials: trained on several cores, recorded once, and gone on with."""

import json

import pytest
from tiny_training import tiny_config

from scale_invariant_attention.experiments import trials
from scale_invariant_attention.experiments.trials import Evaluation, Trial, recorded, run_trials
from scale_invariant_attention.training import train

EVALUATION = Evaluation(lengths=(32, 128), tokens=512)


def trial(scheme, **changes):
    config = tiny_config(scheme=scheme, steps=3, validate_every=0, **changes)
    return Trial(f"{scheme}-seed-{config.seed}", config, EVALUATION)


def test_trials_are_recorded_and_not_done_twice(tmp_path, monkeypatch):
    runs, results = tmp_path / "runs", tmp_path / "results"
    both = [trial("rope"), trial("alibi")]
    steps, done = [], []
    run_trials(
        both, runs, results, workers=2, watch=steps.append, done=lambda t, r: done.append(t.name)
    )
    assert sorted(done) == ["alibi-seed-0", "rope-seed-0"]
    assert steps[-1] == 6
    record = json.loads((results / "rope-seed-0.json").read_text())
    assert record == recorded(both[0], results)
    assert [row["length"] for row in record["losses"]] == [32, 128]
    assert record["by_position"][-1]["stop"] == 129
    assert [line["step"] for line in record["training"] if "loss" in line] == [1, 2, 3]
    assert record["config"]["scheme"] == "rope"
    assert {"commit", "torch", "cpu"} <= record["provenance"].keys()

    # All are recorded: nothing is left to start.
    monkeypatch.setattr(trials, "_run", None)
    again = []
    run_trials(both, runs, results, workers=1, done=lambda t, r: again.append(r))
    assert again[0] == record


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}])
def test_a_record_of_something_else_does_not_count(tmp_path, change):
    wanted = trial("rope")
    other = Trial(wanted.name, tiny_config(**({"scheme": "rope"} | change)), EVALUATION)
    (tmp_path / "rope-seed-0.json").write_text(json.dumps(trials._asked_for(other)))
    assert recorded(wanted, tmp_path) is None
    assert recorded(other, tmp_path) is not None


def test_a_record_from_before_a_field_counts_as_one_of_its_default(tmp_path):
    wanted = trial("rope")
    record = json.loads(json.dumps(trials._asked_for(wanted)))
    assert record["config"].pop("precision") == "float32"
    (tmp_path / "rope-seed-0.json").write_text(json.dumps(record))
    assert recorded(wanted, tmp_path) == record
    assert recorded(trial("rope", precision="bfloat16"), tmp_path) is None


def test_a_trial_that_fails_ends_all_and_says_why(tmp_path):
    broken = Trial("broken", tiny_config(data="text:nowhere"), EVALUATION)
    with pytest.raises((ValueError, OSError), match="nowhere"):
        run_trials([broken], tmp_path / "runs", tmp_path / "results", workers=1)
    assert not (tmp_path / "results" / "broken.json").exists()


def test_a_training_in_part_goes_on(tmp_path):
    """What a trial trains is what `train` trains: the run that is there is the trial's own."""
    one = trial("rope")
    train(one.config, tmp_path / "runs" / one.name, device="cpu")
    before = (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes()
    run_trials([one], tmp_path / "runs", tmp_path / "results", workers=1)
    assert (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes() == before
