"""Masked bytes: encoders of every scheme, trained and recorded like the leaderboard's models."""

import pytest

from scale_invariant_attention.data import standard_library
from scale_invariant_attention.data.masked_text import MaskedTextTask
from scale_invariant_attention.lab.experiments.leaderboard import SCHEMES
from scale_invariant_attention.lab.experiments.masked import EVALUATION, LENGTH, masked_trials
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import find_record
from scale_invariant_attention.training import TrainingConfig
from scale_invariant_attention.training.training_data import open_task


def test_every_scheme_has_the_same_budget():
    trials = masked_trials(seeds=(0,))
    assert [trial.config.scheme for trial in trials] == list(SCHEMES)
    configs = [it.config.to_dict() | {"scheme": "", "scheme_options": {}} for it in trials]
    assert len({str(it) for it in configs}) == 1
    assert EVALUATION.lengths == (LENGTH, 4 * LENGTH, 16 * LENGTH)
    trials[0].check()


def test_a_task_of_masked_text_trains_an_encoder():
    config = TrainingConfig(task="masked-text", vocab_size=257)
    assert not config.model_config().is_causal
    assert TrainingConfig(task="copy").model_config().is_causal
    train, validation = (open_task(config, it, 1) for it in ("train", "validation"))
    assert isinstance(train, MaskedTextTask) and train.order == "shuffled"
    assert validation.order == "sequential"


def test_the_vocabulary_must_have_the_mask():
    with pytest.raises(
        ValueError, match="must be at least the 257 tokens of the task 'masked-text', got"
    ):
        open_task(TrainingConfig(task="masked-text"), "train", 0)


def test_more_examples_than_there_is_text_are_refused():
    [trial] = masked_trials(names=("rope",), seeds=(0,), evaluation={"examples": 10**6})
    with pytest.raises(
        ValueError, match=r"examples must be at most \d+, as many as the text has of"
    ):
        trial.check()


def test_trials_score_the_same_bytes_at_every_length(tmp_path):
    small = {"steps": 2, "batch_size": 2, "width": 16, "layers": 1, "validation_tokens": 512}
    evaluation = {"lengths": (64, 128, 256), "examples": 3}
    trials = masked_trials("mini", ("logn-rope", "yarn"), (0,), small, evaluation)
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    for trial in trials:
        record = find_record(trial, tmp_path / "results")
        assert [row.examples for row in record.scores] == [12, 6, 3]
        assert len({row.count for row in record.scores}) == 1
        assert record.corpus == standard_library("validation").fingerprint()
        assert record.scores_by_length() == {row.length: row.share for row in record.scores}
