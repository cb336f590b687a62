"""Trials of vision transformers: one budget for all, tests on other images, and records."""

import pytest
import torch

from scale_invariant_attention.data.images import IMAGE_TASKS
from scale_invariant_attention.evaluation import image_scores as image_scores_module
from scale_invariant_attention.evaluation.image_scores import answers, example_losses, image_scores
from scale_invariant_attention.lab.experiments.catalogue import EXPERIMENTS
from scale_invariant_attention.lab.experiments.images import (
    EVALUATION,
    TRAINED_SIZES,
    VARIANTS,
    image_trials,
    train_images,
)
from scale_invariant_attention.lab.experiments.running import run_in_turn, run_side_by_side
from scale_invariant_attention.lab.experiments.trials import DifferentRecordError, find_record
from scale_invariant_attention.training import LearningRates, build_optimisers

SMALL = {"steps": 3, "batch_size": 4, "width": 16, "heads": 2, "layers": 1}
QUICK = {"lengths": (4, 8), "examples": 5}
CPU = torch.device("cpu")


def small_trials(*names, tasks=("textures",), seeds=(0,), **changes):
    return image_trials("mini", names, seeds, QUICK, tasks, SMALL | changes)


def test_every_variant_has_the_same_budget():
    trials = image_trials(seeds=(0, 1))
    assert len(trials) == 2 * len(VARIANTS) * len(IMAGE_TASKS) == len({it.name for it in trials})
    assert len(VARIANTS) >= 6
    own = ("task", "variant", "seed", "scheme", "scheme_options", "grid")
    shared = [
        {name: value for name, value in it.printed_config.items() if name not in own}
        for it in trials
    ]
    assert all(it == shared[0] for it in shared)
    assert EVALUATION.lengths == tuple(factor * TRAINED_SIZES[-1] for factor in (1, 2, 4, 8))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_learns(name):
    """The loss of a batch falls when a model is trained on it alone."""
    [trial] = small_trials(name)
    batch, model = trial.config.trained_on.batch(4, range(8)), trial.config.model()
    optimisers = build_optimisers(model, LearningRates(head=0.005, embedding=0.005))
    losses = []
    for _ in range(30):
        loss = example_losses(answers(model, batch, CPU), batch, CPU).mean()
        loss.backward()
        optimisers.step()
        optimisers.zero_grad()
        losses.append(loss.item())
    assert max(losses[-10:]) < min(losses[:10])


def test_a_training_is_reproducible_and_its_seed_matters():
    [first], [again], [other] = (small_trials("alibi", seeds=(seed,)) for seed in (0, 0, 1))
    losses = [train_images(it.config, CPU).losses for it in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


def test_trials_are_recorded_and_none_is_done_twice(tmp_path):
    trials = small_trials("learned", "scale-invariant-p-rope")
    folders = tmp_path / "runs", tmp_path / "results"
    run_in_turn(trials, *folders, device="cpu")
    for trial in trials:
        record = find_record(trial, tmp_path / "results")
        assert record.config == trial.config and record.evaluation == trial.evaluation
        assert [(row.length, row.examples) for row in record.images] == [(4, 5), (8, 5)]
        assert record.images_by_size() == {row.length: row.score for row in record.images}
        assert len(record.training.loss) == 3
    before = (tmp_path / "results" / f"{trials[0].name}.json").read_bytes()
    done = []
    run_side_by_side(
        trials, *folders, workers=1, done=lambda trial, record: done.append(trial.name)
    )
    assert done == [trial.name for trial in trials]
    assert (tmp_path / "results" / f"{trials[0].name}.json").read_bytes() == before
    with pytest.raises(DifferentRecordError, match="width"):
        find_record(small_trials("learned", width=32)[0], tmp_path / "results")


def test_trainings_and_tests_read_the_images_of_their_split():
    """A model that never learns predicts 0: its losses are the mean squares of what it is asked."""
    [trial] = small_trials("nope", steps=4, matrix_rate=0.0, other_rate=0.0)
    trained, tested = trial.config.trained_on, trial.config.data
    assert (trained.split, tested.split) == ("train", "validation")
    assert trained.seed != tested.seed
    model = train_images(trial.config, CPU)
    batches = [
        trained.batch(size, range(4 * step, 4 * step + 4)) for step, size in enumerate((4, 5, 6, 4))
    ]
    assert model.losses == pytest.approx([hidden_squares(batch) for batch in batches])
    record = trial.measure(model, None, CPU)
    for row in record.images:
        assert row.loss == pytest.approx(hidden_squares(tested.batch(row.length, range(5))))
        assert row.score == pytest.approx(0.0)


def hidden_squares(batch):
    """The mean square of hidden pixels, as every canvas hides as many."""
    return batch.targets[batch.hidden].square().mean().item()


def test_a_record_names_the_digits():
    pytest.importorskip("sklearn")
    [trial] = small_trials("nope", tasks=("digits",), steps=1)
    record = trial.measure(train_images(trial.config, CPU), None, CPU)
    assert record.corpus == IMAGE_TASKS["digits"](split="validation").fingerprint() is not None


def test_scores_are_shares_of_what_there_is_to_explain(monkeypatch):
    task = IMAGE_TASKS["textures"](split="validation")

    class Right(torch.nn.Module):
        """Knows half of the value of hidden pixels, and nothing of those that it sees."""

        def forward(self, images, hidden):
            patches = images.unfold(1, 8, 8).unfold(2, 8, 8).reshape(len(images), -1, 64)
            return torch.where(hidden.unsqueeze(-1), patches / 2, 100)

    score = image_scores(Right(), task, size=6, examples=9, device=CPU)
    assert score.share == pytest.approx(0.75)
    assert score.loss.mean > 0 and score.loss.standard_error > 0
    monkeypatch.setattr(image_scores_module, "PATCHES_AT_ONCE", 4 * 36)
    in_parts = image_scores(Right(), task, size=6, examples=9, device=CPU)
    assert in_parts.loss.mean == pytest.approx(score.loss.mean)
    assert in_parts.share == pytest.approx(score.share)


def test_shares_of_classes():
    pytest.importorskip("sklearn")
    task = IMAGE_TASKS["digits"](split="validation")
    labels = task.batch(6, range(9)).targets

    class Sevens(torch.nn.Module):
        """Says 7 whatever it sees."""

        def forward(self, images, hidden):
            return torch.eye(10)[7].expand(len(images), 10)

    score = image_scores(Sevens(), task, size=6, examples=9, device=CPU)
    assert score.share == int((labels == 7).sum()) / 9


def test_what_is_no_task_or_candidate_is_refused():
    with pytest.raises(
        ValueError, match=r"no task 'digit' \(did you mean 'digits'\?\); there are: d"
    ):
        image_trials(tasks=("digit",))
    with pytest.raises(ValueError, match=r"there is no candidate 'rop' \(did you mean 'rope'\?\)"):
        image_trials(names=("rop",))
    with pytest.raises(ValueError, match="images has the scale 'mini' alone, got 'paper'"):
        image_trials("paper")


def test_the_experiment_labels_rows_by_task_and_title():
    [trial] = EXPERIMENTS["images"].trials(compared=("learned",), seeds=(0,), tasks=("textures",))
    assert trial.config.label == "textures, Learned absolute, interpolated"
