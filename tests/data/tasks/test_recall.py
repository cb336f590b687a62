"""Associative recall: every query has its pair, at a random position, and nothing else is scored."""

import numpy as np
import pytest

from scale_invariant_attention.data.tasks import NOT_SCORED, RecallTask

TASKS = [
    RecallTask(),
    RecallTask(keys=4, values=2, noise=1, pairs=4, queries=1),
    RecallTask(keys=30, values=10, noise=5, pairs=6, queries=3, seed=9),
]


# Of four examples, by the code that the records in results/ were measured with.
CHECKSUMS = [38_800, 36_795, 35_726, 36_626, -149_021, -148_895, -149_180, -148_897]


def sequence(task, length, number):
    """All tokens of an example, the last of which is an answer."""
    inputs, targets = task.batch(length, [number])
    return np.append(inputs[0].numpy(), targets[0, -1].item())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("more", [0, 1, 77, 1000])
def test_queries_have_their_pairs(task, more):
    length = task.shortest + more
    for number in range(10):
        tokens = sequence(task, length, number)
        assert len(tokens) == length
        assert tokens.max() < task.vocab_size
        body, queries = np.split(tokens, [length - 2 * task.queries - 1])
        assert queries[0] == task.vocab_size - 1 and (body != task.vocab_size - 1).all()
        starts = np.flatnonzero(body < task.keys)
        pairs = dict(zip(body[starts].tolist(), body[starts + 1].tolist(), strict=True))
        assert len(pairs) == task.pairs
        assert all(task.keys <= value < task.keys + task.values for value in pairs.values())
        asked = queries[1::2].tolist()
        assert len(set(asked)) == task.queries
        assert queries[2::2].tolist() == [pairs[key] for key in asked]
        noise = np.delete(body, np.concatenate([starts, starts + 1]))
        assert len(noise) == more
        assert ((task.keys + task.values <= noise) & (noise < task.vocab_size - 1)).all()


def test_only_the_values_of_queries_are_scored():
    task = RecallTask(pairs=5, queries=3)
    inputs, targets = task.batch(100, [2, 7])
    for row, number in enumerate([2, 7]):
        tokens = sequence(task, 100, number)
        assert inputs[row].tolist() == tokens[:-1].tolist()
        scored = targets[row] != NOT_SCORED
        assert targets[row][scored].tolist() == tokens[-5::2].tolist()
        assert inputs[row][scored].tolist() == tokens[-6::2].tolist()


def test_positions_are_uniform():
    task = RecallTask(pairs=2, queries=1, keys=8)
    starts = []
    for number in range(500):
        tokens = sequence(task, 205, number)
        starts += np.flatnonzero(tokens[:202] < task.keys).tolist()
    counts, _ = np.histogram(starts, bins=10, range=(0, 201))
    assert ((counts - 100) ** 2 / 100).sum() < 27.9


def test_recorded_trainings_can_be_repeated():
    """The examples that recorded models were trained and measured with: a checksum of some."""
    task = RecallTask(keys=16, values=4, noise=16, pairs=8, queries=8, seed=1)
    inputs, targets = task.batch(64, range(4))
    position = 1 + np.arange(63)
    assert [int((row.numpy() * position).sum()) for row in (*inputs, *targets)] == CHECKSUMS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": 0}, "keys must be at least 1"),
        ({"pairs": 65}, "pairs must be at most the 64 keys"),
        ({"pairs": 3, "queries": 4}, "queries must be at most the 3 pairs"),
    ],
)
def test_impossible_tasks_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RecallTask(**changes)
