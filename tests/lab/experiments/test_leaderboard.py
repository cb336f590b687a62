"""The leaderboard's trials: the same budget for every scheme, and records that can be compared."""

from dataclasses import replace

import pytest
import torch
from own_schemes import own_scheme
from small_records import task_record

from scale_invariant_attention import schemes
from scale_invariant_attention.data.tasks import SEQUENCE_TASKS
from scale_invariant_attention.lab.experiments.leaderboard import (
    DISCIPLINES,
    EVALUATION,
    LENGTH,
    SCHEMES,
    leaderboard_trials,
    read_leaderboard,
)
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import DifferentRecordError, find_record
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.training.training_data import open_task


def test_every_scheme_has_the_same_budget_in_a_task():
    trials = leaderboard_trials(names=("rope", "alibi", "scale-invariant-spread"), seeds=(0,))
    assert len(trials) == 3 * len(DISCIPLINES) == len({trial.name for trial in trials})
    for task in DISCIPLINES:
        configs = [it.config.to_dict() for it in trials if it.config.task == task]
        assert len({str(it | {"scheme": "", "scheme_options": {}}) for it in configs}) == 1
    assert EVALUATION.lengths == (LENGTH, 4 * LENGTH, 16 * LENGTH, 64 * LENGTH)


def test_the_default_schemes_are_the_papers_and_the_recommended_one():
    trials = leaderboard_trials(seeds=(1,), tasks=("copy",))
    assert [trial.config.scheme for trial in trials] == list(SCHEMES)
    assert (*schemes.names()[:12], "scale-invariant-spread") == SCHEMES


def test_trials_come_seed_by_seed_and_task_by_task():
    trials = leaderboard_trials(names=("rope", "nope"), seeds=(0, 1), tasks=("sort", "copy"))
    found = [(it.config.seed, it.config.task, it.config.scheme) for it in trials]
    order = [(0, "sort"), (0, "copy"), (1, "sort"), (1, "copy")]
    assert found == [(*it, scheme) for it in order for scheme in ("rope", "nope")]


@pytest.mark.parametrize("task", DISCIPLINES)
def test_every_task_can_be_trained_and_tested_at_its_lengths(task):
    [trial] = leaderboard_trials(names=("rope",), seeds=(0,), tasks=(task,))
    trial.check()
    config = trial.config
    its = open_task(config, "train", 1)
    assert type(its) is SEQUENCE_TASKS[task] and its.vocab_size == config.vocab_size
    assert its.shortest <= config.first_length <= config.length == LENGTH


def test_an_unknown_task_is_refused():
    with pytest.raises(
        ValueError, match=r"no task 'copi' \(did you mean 'copy'\?\); the tasks are"
    ):
        leaderboard_trials(tasks=("copi",))


def test_schemes_that_are_trained_as_another_share_its_training():
    trials = leaderboard_trials(names=("rope", "yarn"), seeds=(0,), tasks=("copy",))
    assert {trial.training_name for trial in trials} == {"leaderboard-copy-rope-seed-0"}


def test_trials_are_recorded(tmp_path):
    small = {"steps": 2, "growth_steps": 1, "batch_size": 2, "width": 16, "layers": 1}
    evaluation = {"lengths": (64, 128), "examples": 3}
    trials = leaderboard_trials(
        "mini", ("rope",), (0,), small, evaluation, tasks=("copy", "2-back", "fractal-noise")
    )
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    copied, back, noise = (find_record(trial, tmp_path / "results") for trial in trials)
    assert [(row.length, row.count, row.examples) for row in copied.scores] == [
        (64, 3 * 31, 3),
        (128, 3 * 63, 3),
    ]
    assert copied.scores_by_length() == {row.length: row.share for row in copied.scores}
    assert all(row.whole <= 3 and row.excess is None and row.loss > 0 for row in back.scores)
    assert noise.scores_by_length() == {row.length: row.excess for row in noise.scores}
    assert all(row.excess_error > 0 for row in noise.scores)


def test_records_with_other_settings_are_not_compared(tmp_path):
    write_record(task_record("copy", "rope", 0, (1.0, 0.5, 0.2, 0.1)), tmp_path)
    with own_scheme() as mine:
        write_record(task_record("motifs", mine, 7, (0.1, 0.2, 0.3, 0.4)), tmp_path)
        assert [record.scheme for record in read_leaderboard(tmp_path)] == ["rope", mine]
    # The scheme is not registered any more.
    with pytest.raises(ValueError, match=r"import the module that registers it"):
        read_leaderboard(tmp_path)
    next(tmp_path.glob("*motifs*")).unlink()
    other = task_record("copy", "alibi", 0, (1.0, 0.5, 0.2, 0.1))
    write_record(replace(other, config=replace(other.config, batch_size=64)), tmp_path)
    with pytest.raises(DifferentRecordError, match="batch_size"):
        read_leaderboard(tmp_path)


def test_a_task_is_measured_on_examples_that_are_not_trained_on():
    [trial] = leaderboard_trials(names=("rope",), seeds=(0,), tasks=("copy",))
    trained = open_task(trial.config, "train", 1).batch(64, range(500))[0]
    tested = trial.evaluation._task(trial.config).batch(64, range(64))[0]
    assert not (tested[:, None] == trained).all(-1).any()
    assert torch.equal(tested, SEQUENCE_TASKS["copy"]().batch(64, range(64))[0])
