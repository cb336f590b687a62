"""Training on tasks: only answers are scored, and a training can start from another."""

import math

import pytest
import torch
from tiny_training import measured, same_weights, tiny_config, weights

from scale_invariant_attention.data.tasks import NOT_SCORED
from scale_invariant_attention.model import GPT
from scale_invariant_attention.training import read_metrics, train
from scale_invariant_attention.training.training_data import open_task, open_training_data

RECALL = {
    "task": "recall",
    "task_options": {"keys": 6, "values": 5, "noise": 3, "pairs": 4, "queries": 3},
    "vocab_size": 15,
}
NEEDLES = {"task": "needles", "task_options": {"needles": 1, "digits": 2}, "length": 128}
BOTH = pytest.mark.parametrize("changes", [RECALL, NEEDLES], ids=["recall", "needles"])


class KilledError(Exception):
    """Ends a training between two steps, as a kill would."""


def killed_at(step):
    def watch(progress):
        if progress.step == step:
            raise KilledError

    return watch


def task_config(changes, **others):
    return tiny_config(**(changes | {"validation_lengths": (128, 256)} | others))


@BOTH
def test_the_loss_is_that_of_scored_tokens_alone(tmp_path, changes):
    config = task_config(changes, steps=1, micro_batch_size=3, batch_size=8)
    train(config, tmp_path)
    first = next(line["loss"] for line in read_metrics(tmp_path) if "loss" in line)
    # A head of zeros guesses, whatever it is asked.
    assert first == pytest.approx(math.log(config.vocab_size), rel=1e-6)
    inputs, targets = open_training_data(config).batches[0]
    assert inputs.shape == targets.shape == (8, config.length - 1)
    assert 0 < int((targets != NOT_SCORED).sum()) < targets.numel() / 2


def test_parts_of_a_batch_are_weighted_by_their_scored_tokens(tmp_path):
    """Answers differ in length: gradients of parts must add up to those of the whole."""
    found = []
    for rows in (None, 3):
        config = task_config(NEEDLES, steps=4, batch_size=8, micro_batch_size=rows)
        train(config, tmp_path / str(rows))
        found.append([line["loss"] for line in measured(tmp_path / str(rows)) if "loss" in line])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@BOTH
def test_validation_is_the_mean_over_scored_tokens(tmp_path, changes):
    config = task_config(changes, steps=3, validation_tokens=2048)
    model = train(config, tmp_path)
    recorded = [line for line in read_metrics(tmp_path) if "validation" in line][-1]["validation"]
    validation = open_training_data(config).validation
    for length in (128, 256):
        ((inputs, targets),) = validation.batches(length, batch_size=8)
        assert len(inputs) == 8
        expected = model(inputs, targets).item()
        assert recorded[str(length)] == pytest.approx(expected, rel=1e-5)


@BOTH
def test_training_and_validation_share_no_example_and_seeds_differ(changes):
    first, second = (task_config(changes, seed=seed) for seed in (0, 1))
    training, validation = open_training_data(first), open_training_data(first).validation
    rows = {tuple(row.tolist()) for step in range(4) for row in training.batches[step][0]}
    held_out = [row for inputs, _ in validation.batches(128, batch_size=2) for row in inputs]
    assert not rows & {tuple(row.tolist()) for row in held_out}
    others = {tuple(row.tolist()) for row in open_training_data(second).batches[0][0]}
    assert not rows & others
    again = [
        row
        for inputs, _ in open_training_data(second).validation.batches(128, batch_size=2)
        for row in inputs
    ]
    assert all(torch.equal(one, other) for one, other in zip(held_out, again, strict=True))


@BOTH
def test_ranks_divide_a_batch(changes):
    config = task_config(changes, batch_size=8)
    whole, _ = open_training_data(config).batches[5]
    parts = [open_training_data(config, rank, 2).batches[5][0] for rank in (0, 1)]
    assert torch.equal(torch.cat(parts), whole)


@BOTH
def test_a_training_that_was_stopped_ends_the_same(tmp_path, changes):
    config = task_config(changes, steps=6, checkpoint_every=2)
    train(config, tmp_path / "whole")

    with pytest.raises(KilledError):
        train(config, tmp_path / "killed", watch=killed_at(3))
    train(config, tmp_path / "killed")
    assert same_weights(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    train(tiny_config(steps=3), folder)
    return folder


def test_a_training_starts_from_another_and_resumes_without_it(pretrained, tmp_path):
    config = task_config(NEEDLES, start=str(pretrained), steps=4, checkpoint_every=2)
    first = train(config, tmp_path / "run")
    expected = GPT.from_pretrained(pretrained / "model")
    inputs, targets = open_training_data(config).batches[0]
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert losses[0] == pytest.approx(expected(inputs, targets).item(), rel=1e-5)
    assert losses[0] != pytest.approx(math.log(256), rel=0.01)

    with pytest.raises(KilledError):
        train(config, tmp_path / "again", watch=killed_at(2))
    train(config, tmp_path / "again")
    assert same_weights(weights(tmp_path / "again"), first.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "rope"}, "scheme_name is 'scale-invariant-p-rope' there, 'rope' here"),
        ({"width": 64}, "width is 32 there, 64 here"),
    ],
)
def test_a_start_of_another_kind_is_refused(pretrained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(task_config(NEEDLES, start=str(pretrained), **changes), tmp_path)


def test_an_option_means_its_number_however_it_is_written(tmp_path):
    train(tiny_config(steps=1, scheme_options={"tau": 5.0}), tmp_path / "start")
    config = tiny_config(steps=1, scheme_options={"tau": 5}, start=str(tmp_path / "start"))
    train(config, tmp_path / "run")


def test_a_missing_start_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(tiny_config(start="nowhere"), tmp_path)


def test_validation_on_masked_text_hides_the_same_tokens_at_every_length():
    config = tiny_config(
        task="masked-text", vocab_size=257, validation_lengths=(64, 256), validation_tokens=1024
    )
    validation = open_training_data(config).validation
    hidden = [
        torch.cat([targets.flatten() for _, targets in validation.batches(length, batch_size=4)])
        for length in (64, 256)
    ]
    assert hidden[0].shape == (1024,) and torch.equal(*hidden)


def test_sequences_grow_to_their_length():
    task = {"keys": 8, "values": 8, "noise": 4, "pairs": 2, "queries": 1}
    config = tiny_config(
        task="recall", task_options=task, length=40, first_length=8, growth_steps=4, batch_size=2
    )
    batches = open_training_data(config).batches
    shapes = [tuple(batches[step][0].shape) for step in range(6)]
    assert shapes == [(2, 7), (2, 15), (2, 23), (2, 31), (2, 39), (2, 39)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "recall", "first_length": 8}, "first_length and growth_steps belong together"),
        ({"task": "recall", "growth_steps": 8}, "first_length and growth_steps belong together"),
        ({"first_length": 8, "growth_steps": 8}, "first_length must be none for the task 'text'"),
        (
            {"task": "recall", "first_length": 99, "growth_steps": 8},
            "first_length must be from 1 to the length of 32, got 99",
        ),
        (
            {"task": "needle"},
            "task must be one of text, needles, masked-text, copy, .*; got 'needle'",
        ),
        ({"task_options": {"digits": 3}}, "task_options must be empty for the task 'text'"),
        ({"task": "needles", "task_options": {"digit": 3}}, "did you mean 'digits'"),
        ({"task": "recall", "task_options": {"pairs": 100}}, "pairs must be at most the 64 keys"),
        ({"task": "copy", "task_options": {"pairs": 4}}, "CopyTask has no field 'pairs'"),
        (
            {"task": "copy", "task_options": {"seed": 4}},
            "task_options must be without a seed, got 4",
        ),
    ],
)
def test_bad_tasks_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tiny_config(**changes)


def test_a_vocabulary_that_is_too_small_is_refused():
    with pytest.raises(
        ValueError, match="must be at least the 161 tokens of the task 'recall', got 100"
    ):
        open_task(tiny_config(task="recall", vocab_size=100), "train", 0)
