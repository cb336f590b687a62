"""Table 2: fine-tunings that start from the trainings of Table 1."""

import pytest
from tiny_training import TINY

from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.table1 import loss_trials
from scale_invariant_attention.lab.experiments.table2 import needle_trials
from scale_invariant_attention.training import read_metrics
from scale_invariant_attention.training.runs import read_config

FORM = {"needles": 1, "digits": 1}
LENGTH = 96


def tiny_trials(*names, **changes):
    small = TINY | {"length": LENGTH, "validation_lengths": (LENGTH,), "steps": 2}
    small |= {"task_options": FORM, "first_length": None, "growth_steps": 0}
    small |= {"warmup_steps": 0, "constant_steps": None}
    before = TINY | {"validation_lengths": (LENGTH,), "steps": 3}
    evaluation = {"lengths": (LENGTH, 2 * LENGTH), "examples": 2, "depths": 2}
    return needle_trials("mini", names, (0,), small | changes, evaluation, before)


def test_every_fine_tuning_starts_from_its_training_of_table_1():
    of_table1 = {trial.name: trial for trial in loss_trials()}
    for trial in needle_trials():
        first, second = trial.trainings
        assert first == of_table1[first.name]
        assert trial.config.start == second.config.start == first.name
        assert trial.config.task == "needles"
        assert (trial.config.seed, trial.config.scheme_options) == (
            of_table1[trial.name.removeprefix("needles-")].config.seed,
            of_table1[trial.name.removeprefix("needles-")].config.scheme_options,
        )


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_the_schedule_is_the_papers(scale):
    for trial in needle_trials(scale, ("rope",), (0,)):
        schedule = trial.config.learning_schedule()
        steps = trial.config.steps
        third = steps // 3
        assert schedule.factor(0, steps) == pytest.approx(1 / third)
        assert schedule.factor(third, steps) == schedule.factor(2 * third, steps) == 1
        assert schedule.factor(steps - third // 2, steps) == pytest.approx(0.5)


def test_the_papers_recipe():
    [trial] = needle_trials("paper", ("alibi",), (2,))
    config = trial.config
    assert (config.steps, config.batch_size, config.length) == (300, 64, 4096)
    assert (config.task_options, config.matrix_rate) == ({}, 0.02)
    assert trial.evaluation.lengths == (4096, 16_384, 65_536)
    assert trial.trainings[0].config.steps == 4578


def test_models_are_trained_once_fine_tuned_and_tested(tmp_path):
    runs, results, done = tmp_path / "runs", tmp_path / "results", {}
    both = tiny_trials("rope", "yarn")
    run_in_turn(
        both,
        runs,
        results,
        device="cpu",
        done=lambda trial, record: done.update({trial.name: record}),
    )
    assert sorted(path.name for path in runs.iterdir()) == ["needles-rope-seed-0", "rope-seed-0"]
    for name, record in done.items():
        assert record.trained_as == "needles-rope-seed-0"
        assert record.config.start == "rope-seed-0", name
        assert [row.length for row in record.needles.lengths] == [LENGTH, 2 * LENGTH]
        assert sum(cell.count for cell in record.needles.cells) == 4
        assert len(record.training.loss) == 2
    assert read_config(runs / "needles-rope-seed-0")["start"] == str(runs / "rope-seed-0")


def test_a_resumed_training_does_not_need_its_start(tmp_path):
    [trial] = tiny_trials("rope")
    assert trial.steps_trained(tmp_path) == 0
    first = trial.starts_from.train(tmp_path, device="cpu")
    assert trial.steps_trained(tmp_path) == 3
    trial.train(tmp_path, device="cpu")
    assert trial.steps_trained(tmp_path) == sum(trial.training_steps.values()) == 5
    (tmp_path / "rope-seed-0").rename(tmp_path / "gone")
    trial.train(tmp_path, device="cpu")
    assert not (tmp_path / "rope-seed-0").exists()
    assert len(read_metrics(tmp_path / "gone")) and first is not None
