"""What holds of every task: exact lengths, reproducible examples, answers that do not leak."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scale_invariant_attention.data.tasks import (
    NOT_SCORED,
    SEQUENCE_TASKS,
    ProcessTask,
    TaskBatches,
)

LENGTHS = (96, 97, 300)
every_task = pytest.mark.parametrize("name", SEQUENCE_TASKS)
with_answers = pytest.mark.parametrize(
    "name", [name for name, task in SEQUENCE_TASKS.items() if not issubclass(task, ProcessTask)]
)


@every_task
def test_lengths_are_exact_and_tokens_in_the_vocabulary(name):
    task = SEQUENCE_TASKS[name]()
    for length in (task.shortest, task.shortest + 1, *LENGTHS):
        inputs, targets = task.batch(length, range(20))
        assert inputs.shape == targets.shape == (20, length - 1)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.min() >= 0 and inputs.max() < task.vocab_size
        scored = targets != NOT_SCORED
        assert scored.any(dim=1).all()
        assert targets[scored].min() >= 0 and targets[scored].max() < task.vocab_size
        # The last token is an answer, so that no shorter sequence would do.
        assert name == "motifs" or scored[:, -1].all()


@every_task
def test_every_token_of_the_vocabulary_occurs(name):
    task = SEQUENCE_TASKS[name]()
    inputs, targets = task.batch(300, range(300))
    found = set(inputs.unique().tolist()) | set(targets.unique().tolist()) - {NOT_SCORED}
    assert found == set(range(task.vocab_size))


@every_task
def test_shorter_examples_than_the_shortest_are_refused(name):
    task = SEQUENCE_TASKS[name]()
    with pytest.raises(ValueError, match=rf"length must be at least {task.shortest} for .*, got"):
        task.batch(task.shortest - 1, [0])


@every_task
def test_an_example_depends_on_seed_length_and_number_alone(name):
    task = SEQUENCE_TASKS[name]()
    together = [part.clone() for part in task.batch(150, range(8))]
    for part, again in zip(together, task.batch(150, [5, 2, 11]), strict=True):
        assert torch.equal(part[[5, 2]], again[:2])
        assert not torch.equal(part[5], again[2])
    other = replace(task, seed=1).batch(150, range(8))
    assert not any((mine == its).all() for mine, its in zip(together[0], other[0], strict=True))
    assert not torch.equal(task.batch(151, range(8))[0][:, :149], together[0])


@every_task
def test_numbers_are_not_repeated(name):
    inputs, targets = SEQUENCE_TASKS[name]().batch(200, range(500))
    assert len({row.tobytes() for row in torch.cat([inputs, targets], 1).numpy()}) == 500


@every_task
def test_training_batches_grow(name):
    task = SEQUENCE_TASKS[name]()
    sizes = {"length": 120, "batch_size": 2, "first_length": task.shortest, "growth_steps": 10}
    batches = TaskBatches(task, **sizes)
    lengths = [batches[step][0].shape[1] + 1 for step in range(12)]
    assert lengths[0] == task.shortest and lengths[-2:] == [120, 120]
    assert lengths == sorted(lengths)


def bigram_guesses(inputs, targets, vocab_size, train):
    """Share of scored tokens that the most frequent answer to the last two tokens gets right.

    Counted in the first `train` examples, and used in the others.
    """
    previous = torch.cat([torch.zeros_like(inputs[:, :1]), inputs[:, :-1]], 1)
    pair = (previous * vocab_size + inputs).numpy()
    targets = targets.numpy()
    scored = targets != NOT_SCORED
    counts = np.zeros((vocab_size**2, vocab_size), np.int32)
    seen = scored[:train]
    np.add.at(counts, (pair[:train][seen], targets[:train][seen]), 1)
    unseen = scored[train:]
    return (counts.argmax(1)[pair[train:][unseen]] == targets[train:][unseen]).mean()


@with_answers
def test_answers_do_not_follow_from_the_tokens_before_them(name):
    """Two-token statistics, the start of every network's training, are of little help."""
    # The last two tokens tell whether a run has just begun, and the bit that was just written.
    helped = {"local-count": 0.2, "flip-flop": 0.14, "sort": 0.1}
    task = SEQUENCE_TASKS[name]()
    guessed = bigram_guesses(*task.batch(120, range(2200)), task.vocab_size, train=1700)
    assert guessed < task.chance + helped.get(name, 0.04)


@with_answers
def test_a_constant_guess_is_right_by_chance(name):
    task = SEQUENCE_TASKS[name]()
    first, second = (
        task.batch(400, numbers)[1].numpy() for numbers in (range(200), range(200, 400))
    )
    guess = np.bincount(first[first != NOT_SCORED]).argmax()
    answers = second[second != NOT_SCORED]
    error = (task.chance / len(answers)) ** 0.5
    # In sort, repeating the previous token is better than any constant guess.
    chance = 1 / task.symbols if name == "sort" else task.chance
    assert (answers == guess).mean() == pytest.approx(chance, abs=4 * error)


@with_answers
def test_a_token_is_predicted_before_it_is_read(name):
    """An answer that is part of the sequence is its next token; any other is never in it."""
    inputs, targets = SEQUENCE_TASKS[name]().batch(130, range(10))
    scored = targets[:, :-1] != NOT_SCORED
    same = targets[:, :-1][scored] == inputs[:, 1:][scored]
    if name in ("2-back", "local-count"):
        assert same.float().mean() < 0.3
    else:
        assert same.all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("copy", {"symbols": 1}, "symbols must be at least 2, got 1"),
        ("mqmtar", {"density": 1.5}, r"density must be at most 1, got 1\.5"),
        ("mqmtar", {"key_letters": 1}, "queries must be at most the 1 keys, got 4"),
        ("variable-tracking", {"chains": 9}, "chains must be at most the 8 values, got 9"),
        ("variable-tracking", {"hops": 8}, "variables must be at least the 18 of 2 chains with 8"),
        ("flip-flop", {"ignored": 1.1}, r"ignored must be at most 1, got 1\.1"),
        ("2-back", {"back": -1}, "back must be at least 0, got -1"),
        ("local-count", {"longest": 0}, "longest must be at least 1, got 0"),
        ("fractal-noise", {"memory": 0.5}, r"memory must be from 0 to below 0\.5, got 0\.5"),
        ("motifs", {"mutation": 1.0}, r"mutation must be from 0 to below 1, got 1\.0"),
    ],
)
def test_impossible_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        SEQUENCE_TASKS[name](**options)
