"""Trials: trained on several cores, recorded once, and gone on with."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from tiny_training import tiny_config

from scale_invariant_attention.experiments import trials
from scale_invariant_attention.experiments.trials import (
    DifferentRecordError,
    Evaluation,
    Trial,
    recorded,
    run_in_turn,
    run_side_by_side,
)
from scale_invariant_attention.training import DivergedError, read_metrics, train

EVALUATION = Evaluation(lengths=(32, 128), tokens=512)


def trial(scheme, **changes):
    config = tiny_config(**({"scheme": scheme, "steps": 3, "validate_every": 0} | changes))
    return Trial(f"{scheme}-seed-{config.seed}", config, EVALUATION)


def test_trials_are_recorded_and_not_done_twice(tmp_path, monkeypatch):
    runs, results = tmp_path / "runs", tmp_path / "results"
    both = [trial("rope"), trial("alibi")]
    steps, done = [], []
    run_side_by_side(
        both, runs, results, workers=2, watch=steps.append, done=lambda t, r: done.append(t.name)
    )
    assert sorted(done) == ["alibi-seed-0", "rope-seed-0"]
    assert steps[-1] == {"rope-seed-0": 3, "alibi-seed-0": 3}
    record = json.loads((results / "rope-seed-0.json").read_text())
    assert record == recorded(both[0], results)
    assert [row["length"] for row in record["losses"]] == [32, 128]
    assert record["by_position"][-1]["stop"] == 129
    metrics = read_metrics(runs / "rope-seed-0")
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert record["training"]["loss"] == pytest.approx(losses, rel=1e-4)
    assert len(losses) == len(record["training"]["gradient_norm"]) == 3
    assert record["validation"] == [line for line in metrics if "validation" in line] != []
    assert record["config"]["scheme"] == "rope"
    assert {"commit", "torch", "cpu"} <= record["provenance"].keys()

    # All are recorded: nothing is left to start.
    monkeypatch.setattr(trials, "Worker", None)
    again = []
    run_side_by_side(both, runs, results, workers=1, done=lambda t, r: again.append(r))
    assert again[0] == record


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}])
def test_a_record_of_something_else_is_not_overwritten(tmp_path, change):
    wanted = trial("rope")
    other = Trial(wanted.name, tiny_config(**({"scheme": "rope"} | change)), EVALUATION)
    (tmp_path / "rope-seed-0.json").write_text(json.dumps(trials._asked_for(other)))
    assert recorded(other, tmp_path) is not None
    (name,) = change
    with pytest.raises(DifferentRecordError, match=f"config.{name} is .* there"):
        run_side_by_side([trial("alibi"), wanted], tmp_path / "runs", tmp_path, workers=1)
    assert not (tmp_path / "runs").exists()


def test_a_record_from_before_a_field_was_there_counts(tmp_path):
    wanted = trial("rope")
    old = trials._asked_for(wanted)
    del old["config"]["clip_norm"]
    (tmp_path / "rope-seed-0.json").write_text(json.dumps(old))
    assert recorded(wanted, tmp_path) is not None


EXPLODING = Trial("exploding", tiny_config(head_rate=1e4, checkpoint_every=0), EVALUATION)


def test_a_trial_that_fails_ends_all_and_says_why(tmp_path):
    with pytest.raises(DivergedError, match="the loss is"):
        run_side_by_side([EXPLODING], tmp_path / "runs", tmp_path / "results", workers=1)
    assert not (tmp_path / "results" / "exploding.json").exists()


def test_a_trial_that_fails_lets_the_others_save_and_does_not_wait_for_them(tmp_path):
    endless = trial("rope", steps=10**6, checkpoint_every=10**6)
    with pytest.raises(DivergedError):
        run_side_by_side([endless, EXPLODING], tmp_path / "runs", tmp_path, workers=2)
    # It may not have begun yet.
    assert len(list((tmp_path / "runs").rglob("step-*"))) <= 1


def test_a_training_in_part_goes_on(tmp_path):
    """What a trial trains is what `train` trains: the run that is there is the trial's own."""
    one = trial("rope")
    train(one.config, tmp_path / "runs" / one.name, device="cpu")
    before = (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes()
    run_side_by_side([one], tmp_path / "runs", tmp_path / "results", workers=1)
    assert (tmp_path / "runs" / one.name / "metrics.jsonl").read_bytes() == before


def test_in_turn_records_the_same_as_side_by_side(tmp_path):
    both = [trial("rope"), trial("alibi")]
    run_side_by_side(both, tmp_path / "runs", tmp_path / "results", workers=1)
    done, told = [], []
    run_in_turn(
        both,
        tmp_path / "other-runs",
        tmp_path / "other",
        device="cpu",
        notice=told.append,
        done=lambda trial, record: done.append(trial.name),
    )
    assert done == ["rope-seed-0", "alibi-seed-0"]
    assert told[0].startswith("rope-seed-0, in ")
    for one in both:
        first, second = recorded(one, tmp_path / "results"), recorded(one, tmp_path / "other")
        for length, (here, there) in enumerate(zip(first["losses"], second["losses"], strict=True)):
            assert here["loss"] == pytest.approx(there["loss"], rel=1e-5), length


def test_no_document_of_the_longest_length_means_no_losses_by_position(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(64):
        (text / f"{number}.txt").write_text(f"Number {number} is a short text. " * 4)
    one = trial("rope", data=f"text:{text}")
    run_in_turn([one], tmp_path / "runs", tmp_path / "results", device="cpu")
    record = recorded(one, tmp_path / "results")
    assert record["by_position"] == [] and len(record["losses"]) == 2


def test_schemes_that_train_alike_share_a_training(tmp_path):
    changes = {"steps": 3, "validate_every": 1, "validation_lengths": (32, 128)}
    rope = Trial("rope-seed-0", tiny_config(scheme="rope", **changes), EVALUATION)
    config = tiny_config(scheme="rope-ntk", **changes)
    shared = Trial("rope-ntk-seed-0", config, EVALUATION, trained_as=rope)
    alone = Trial("alone", config, EVALUATION)
    run_side_by_side([shared, rope, alone], tmp_path / "runs", tmp_path / "results", workers=1)
    assert {run.name for run in (tmp_path / "runs").iterdir()} == {"rope-seed-0", "alone"}
    found, expected, plain = (recorded(it, tmp_path / "results") for it in (shared, alone, rope))
    assert found["losses"] == expected["losses"] != plain["losses"]
    assert found["by_position"] == expected["by_position"]
    assert found["training"] == expected["training"] == plain["training"]
    assert (found["trained_as"], expected["trained_as"]) == ("rope-seed-0", "alone")
    # Longer lengths were validated as RoPE reads them.
    assert [line["validation"].keys() for line in found["validation"]] == [{"32"}] * 3
    assert [line["validation"]["32"] for line in found["validation"]] == [
        line["validation"]["32"] for line in expected["validation"]
    ]
    # The same one after the other.
    run_in_turn([rope, shared], tmp_path / "others", tmp_path / "other", device="cpu")
    assert {run.name for run in (tmp_path / "others").iterdir()} == {"rope-seed-0"}
    assert recorded(shared, tmp_path / "other")["losses"][1]["loss"] == pytest.approx(
        found["losses"][1]["loss"], rel=1e-5
    )


ENDLESS = """
import sys
from pathlib import Path
from tiny_training import tiny_config
from scale_invariant_attention.experiments.trials import Evaluation, Trial, run_side_by_side

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config = tiny_config(steps=10**6, checkpoint_every=10**6)
    trial = Trial("endless", config, Evaluation((32,), 32))
    run_side_by_side([trial], folder, folder, workers=1)
"""


@pytest.fixture
def endless(tmp_path):
    """A process that runs a trial without end, which has begun."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    support = Path(__file__).parents[1] / "support"
    path = os.pathsep.join(filter(None, (str(support), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stderr=subprocess.PIPE,
    ) as process:
        metrics = tmp_path / "endless" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
        yield process
        process.kill()


def wait_until(reached, seconds=60):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(process):
    """The processes that a process has started and that are there."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                found.append(int(status.parent.name))
    return found


def are_gone(workers):
    return not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_save_and_end_with_the_process_that_started_them(tmp_path, endless, number):
    workers = workers_of(endless)
    assert workers
    endless.send_signal(number)
    endless.wait()
    wait_until(lambda: are_gone(workers))
    (saved,) = (tmp_path / "endless" / "checkpoints").glob("step-*")
    assert int(saved.name.removeprefix("step-")) >= 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_worker_that_is_killed_is_told(endless):
    for worker in workers_of(endless):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{worker}/cmdline").read_bytes():
                os.kill(worker, signal.SIGKILL)
    _, said = endless.communicate(timeout=60)
    assert "the process of endless was killed (exit code -9)" in said


def test_what_cannot_be_evaluated_or_recorded_is_told_before_training(tmp_path):
    config = tiny_config(steps=10**6)
    (tmp_path / "file").touch()
    for evaluation, results, message in (
        (Evaluation((32, 33), 256), tmp_path, "need a multiple of 1056"),
        (EVALUATION, tmp_path / "file", "cannot be written to"),
    ):
        for run in (partial(run_side_by_side, workers=1), partial(run_in_turn, device="cpu")):
            with pytest.raises((ValueError, OSError), match=message):
                run([Trial("endless", config, evaluation)], tmp_path / "runs", results)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["{}", "{", '{"config": {}} x', '{"config": {"stepps": 3}}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "rope-seed-0.json").write_text(text)
    with pytest.raises(ValueError, match=r"rope-seed-0\.json is no record of a trial"):
        recorded(trial("rope"), tmp_path)
