"""The answers of each task, found another way: one example at a time, token by token."""

import numpy as np
import pytest
import torch

from scale_invariant_attention.data.tasks import (
    NOT_SCORED,
    BackTask,
    CopyTask,
    FlipFlopTask,
    LocalCountTask,
    MultiTokenRecallTask,
    ReverseTask,
    SortTask,
    VariableTrackingTask,
)

lengths = pytest.mark.parametrize("length", [60, 61, 64, 257])


def examples(task, length, count=25):
    """Inputs and targets of examples, as lists."""
    inputs, targets = task.batch(length, range(count))
    return zip(inputs.tolist(), targets.tolist(), strict=True)


def source_and_answer(task, length):
    """The symbols before and after the mark, and which of the latter are scored."""
    mark, start = task.symbols + 1, task.symbols
    for inputs, targets in examples(task, length):
        tokens = [*inputs, targets[-1]]
        starts = 2 if length % 2 else 1
        assert tokens[:starts] == [start] * starts
        at = tokens.index(mark)
        source, answer = tokens[starts:at], tokens[at + 1 :]
        assert len(source) == len(answer) == (length - 1 - starts) // 2
        assert max(source) < task.symbols
        assert all(target == NOT_SCORED for target in targets[:at])
        yield source, answer, targets[at:]


@lengths
def test_copy(length):
    for source, answer, targets in source_and_answer(CopyTask(symbols=9), length):
        assert source == answer == targets


@lengths
def test_reverse(length):
    for source, answer, targets in source_and_answer(ReverseTask(symbols=9), length):
        assert list(reversed(source)) == answer == targets


@lengths
def test_sort(length):
    for source, answer, targets in source_and_answer(SortTask(symbols=9), length):
        assert sorted(source) == answer
        for i, (token, target) in enumerate(zip(answer, targets, strict=True)):
            is_inside = 0 < i < len(answer) - 1 and answer[i - 1] == token == answer[i + 1]
            assert target == (NOT_SCORED if is_inside else token)


def test_repeating_the_previous_token_sorts_no_more_than_half():
    for length in (64, 256, 4096):
        inputs, targets = SortTask().batch(length, range(40))
        scored = targets != NOT_SCORED
        share = (inputs[scored] == targets[scored]).double().mean()
        assert share <= 0.5
    assert share > 0.49


@lengths
@pytest.mark.parametrize(
    "task",
    [
        MultiTokenRecallTask(),
        MultiTokenRecallTask(
            key_letters=6, value_letters=3, key_length=3, value_length=1, density=0.3, queries=2
        ),
    ],
    ids=["defaults", "others"],
)
def test_multi_token_recall(task, length):
    letters = task.key_letters + task.value_letters
    blank, start, mark = letters, letters + 1, letters + 2
    width = task.key_length + task.value_length
    for inputs, targets in examples(task, length):
        tokens = [*inputs, targets[-1]]
        assert tokens[0] == start and tokens.count(mark) == 1
        at = tokens.index(mark)
        body, pairs, i = tokens[1:at], {}, 0
        while i < len(body):
            if body[i] == blank:
                i += 1
                continue
            key, value = body[i : i + task.key_length], body[i + task.key_length : i + width]
            assert all(letter < task.key_letters for letter in key)
            assert all(task.key_letters <= letter < letters for letter in value)
            assert tuple(key) not in pairs
            pairs[tuple(key)] = value
            i += width
        filled = task.density * len(body) / width
        assert len(pairs) == max(task.queries, int(filled)) == task.pairs(length)
        asked = set()
        for query in range(task.queries):
            first = at + 1 + query * width
            key = tuple(tokens[first : first + task.key_length])
            assert tokens[first + task.key_length : first + width] == pairs[key]
            asked.add(key)
            expected = [NOT_SCORED] * task.key_length + pairs[key]
            assert targets[first - 1 : first - 1 + width] == expected
        assert len(asked) == task.queries
        assert all(target == NOT_SCORED for target in targets[:at])


def test_more_pairs_than_keys_are_refused():
    task = MultiTokenRecallTask(key_letters=4)
    assert task.batch(100, [0])[0].shape == (1, 99)
    with pytest.raises(ValueError, match="no more than the 16 keys, got 200 with 36 pairs"):
        task.batch(200, [0])


@lengths
@pytest.mark.parametrize(
    "task",
    [VariableTrackingTask(), VariableTrackingTask(variables=9, chains=3, hops=2, noise=1)],
    ids=["defaults", "others"],
)
def test_variable_tracking(task, length):
    noise = task.variables + task.values
    start, assign, mark = noise + task.noise, noise + task.noise + 1, noise + task.noise + 2
    for inputs, targets in examples(task, length):
        tokens = [*inputs, targets[-1]]
        assert tokens[0] == start and tokens.count(assign) == task.chains * (task.hops + 1)
        body = tokens[1 : tokens.index(mark)]
        values = {}
        for i, token in enumerate(body):
            if token == assign:
                # What is assigned is known by then.
                right = body[i + 1]
                values[body[i - 1]] = values[right] if right < task.variables else right
        assert len(values) == task.chains * (task.hops + 1)
        rest = np.array(tokens[tokens.index(mark) :]).reshape(task.chains, task.hops + 3)
        assert (rest[:, 0] == mark).all() and len(set(rest[:, 1])) == task.chains
        for value, *variables in rest[:, 1:].tolist():
            assert variables == [name for name, its in values.items() if its == value]
        expected = np.where(np.arange(task.hops + 3) >= 2, rest, NOT_SCORED).reshape(-1).tolist()
        assert targets[-len(expected) :] == expected
        assert all(target == NOT_SCORED for target in targets[: -len(expected)])


@lengths
@pytest.mark.parametrize("ignored", [0.0, 0.8, 1.0])
def test_flip_flop(length, ignored):
    write, read, ignore, start = 2, 3, 4, 5
    counts = dict.fromkeys((write, read, ignore), 0)
    for inputs, targets in examples(FlipFlopTask(ignored=ignored), length, count=100):
        starts = 1 if length % 2 else 2
        tokens = [*inputs, targets[-1]]
        assert tokens[:starts] == [start] * starts
        instructions, bits = tokens[starts::2], tokens[starts + 1 :: 2]
        assert instructions[0] == write and instructions[-1] == read
        memory = None
        for i, (instruction, bit) in enumerate(zip(instructions, bits, strict=True)):
            counts[instruction] += 1
            if instruction == write:
                memory = bit
            target = targets[starts + 2 * i]
            assert target == (memory if instruction == read else NOT_SCORED)
            assert instruction != read or bit == memory
    inner = sum(counts.values()) - 200
    assert counts[ignore] / inner == pytest.approx(ignored, abs=0.03)
    assert (counts[write] - 100) / inner == pytest.approx((1 - ignored) / 2, abs=0.03)


@lengths
@pytest.mark.parametrize("back", [0, 1, 2, 5])
def test_back(length, back):
    for inputs, targets in examples(BackTask(symbols=7, back=back), length):
        assert inputs[0] == 7 and 7 not in inputs[1:]
        for i, target in enumerate(targets):
            assert target == (inputs[i - back] if i > back else NOT_SCORED)


@lengths
def test_local_count(length):
    task = LocalCountTask(symbols=3, longest=5)
    runs = []
    for inputs, targets in examples(task, length, count=100):
        assert inputs[0] == 5 and targets[0] == NOT_SCORED
        for i in range(1, len(inputs)):
            same = 0
            while inputs[i - same - 1] == inputs[i]:
                same += 1
            assert targets[i] == same < task.longest
            if targets[i] == 0 and i > 1:
                runs.append(targets[i - 1] + 1)
    # The run that a sequence ends with is not whole.
    shares = np.bincount(runs, minlength=6)[1:] / len(runs)
    assert shares == pytest.approx(0.2, abs=0.04)


def test_symbols_are_uniform():
    inputs, _ = CopyTask(symbols=8).batch(402, range(100))
    counts = torch.bincount(inputs[:, 1:201].reshape(-1), minlength=8)
    assert ((counts - 2500.0) ** 2 / 2500).sum() < 24.3


def test_pairs_and_statements_are_anywhere():
    """Uniform over the body: chi-squared of ten bins, at one in 10,000 for independent positions."""
    recall = MultiTokenRecallTask(density=0.05, queries=1)
    tracking = VariableTrackingTask(chains=1, hops=1)
    key_starts = lambda body: (body < 32) & (body.roll(-1, 1) < 32)  # noqa: E731
    assigns = lambda body: body == tracking.vocab_size - 2  # noqa: E731
    for task, found, body, items in ((recall, key_starts, 414, 5), (tracking, assigns, 415, 2)):
        inputs, _ = task.batch(420, range(400))
        _, at = torch.nonzero(found(inputs[:, 1 : body + 1]), as_tuple=True)
        assert len(at) == 400 * items
        counts, _ = np.histogram(at.numpy(), bins=10, range=(0, body))
        assert ((counts - 40 * items) ** 2 / (40 * items)).sum() < 33.7
