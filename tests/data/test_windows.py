from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_invariant_attention.data import TokenStream, Windows, open_shards, write_shard
from scale_invariant_attention.data.windows import ORDERS


def counting(size):
    """Tokens that equal their positions."""
    return TokenStream([np.arange(size, dtype=np.uint32)], vocab_size=size, document_start=size)


sizes = {
    "tokens": st.integers(2, 60),
    "length": st.integers(1, 12),
    "batch_size": st.integers(1, 7),
    "order": st.sampled_from(ORDERS),
    "seed": st.integers(-3, 2**70),
}


@given(**sizes)
@settings(max_examples=100, deadline=None)
def test_an_epoch_has_every_target_once(tokens, length, batch_size, order, seed):
    if tokens <= length:
        return
    windows = Windows(
        counting(tokens), length=length, batch_size=batch_size, order=order, seed=seed
    )
    assert windows.per_epoch == (tokens - 1) // length
    covered = windows.per_epoch * length
    steps = -(-3 * windows.per_epoch // batch_size)
    inputs, targets = (torch.cat([windows[step][side] for step in range(steps)]) for side in (0, 1))
    assert torch.equal(targets, inputs + 1)
    for epoch in range(3):
        rows = slice(epoch * windows.per_epoch, (epoch + 1) * windows.per_epoch)
        assert Counter(targets[rows].flatten().tolist()) == Counter(range(1, covered + 1))
        if order == "sequential":
            assert targets[rows].flatten().tolist() == list(range(1, covered + 1))


@settings(deadline=None)
@given(**sizes, ranks=st.integers(1, 4), step=st.integers(0, 10**9))
def test_ranks_share_one_batch(tokens, length, batch_size, order, seed, ranks, step):
    if tokens <= length:
        return
    windows = Windows(
        counting(tokens), length=length, batch_size=batch_size * ranks, order=order, seed=seed
    )
    parts = [windows.rank(rank, of=ranks)[step] for rank in range(ranks)]
    for side in (0, 1):
        assert torch.equal(torch.cat([part[side] for part in parts]), windows[step][side])
        assert parts[0][side].shape == (batch_size, length)


def test_tensors_are_int64_and_contiguous_and_apart():
    inputs, targets = Windows(counting(20), length=4, batch_size=2)[0]
    for tensor in (inputs, targets):
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
    inputs.zero_()
    assert targets.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_batches_do_not_depend_on_what_was_read_before():
    windows = Windows(counting(1000), length=7, batch_size=5, order="shuffled", seed=3)
    again = Windows(counting(1000), length=7, batch_size=5, order="shuffled", seed=3)
    forwards = [windows[step][0].tolist() for step in range(60)]
    backwards = [again[step][0].tolist() for step in reversed(range(60))]
    assert forwards == backwards[::-1]
    assert [inputs.tolist() for inputs, _ in islice(windows, 60)] == forwards


def test_every_seed_and_epoch_has_its_own_order():
    def epochs(seed):
        windows = Windows(counting(401), length=4, batch_size=100, order="shuffled", seed=seed)
        return [windows.starts(step).tolist() for step in (0, 1)]

    drawn = [*epochs(0), *epochs(1)]
    assert len({tuple(order) for order in drawn}) == 4
    assert {tuple(sorted(order)) for order in drawn} == {tuple(range(0, 400, 4))}


def test_a_batch_may_be_larger_than_an_epoch():
    inputs, _ = Windows(counting(7), length=2, batch_size=5)[1]
    assert inputs[:, 0].tolist() == [4, 0, 2, 4, 0]


def test_windows_run_across_shards(tmp_path):
    for number, part in enumerate(([50256, 1, 2], [3], [4, 50256, 6, 7])):
        write_shard(tmp_path / f"x_train_{number:06}.bin", np.array(part, np.uint16))
    windows = Windows(open_shards(tmp_path), length=3, batch_size=2)
    assert windows[0][0].tolist() == [[50256, 1, 2], [3, 4, 50256]]
    assert windows[0][1].tolist() == [[1, 2, 3], [4, 50256, 6]]


def test_ranks_can_be_divided_again():
    windows = Windows(counting(100), length=3, batch_size=8)
    part = windows.rank(1, of=2).rank(1, of=2)
    assert torch.equal(part[2][0], windows[2][0][6:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"order": "random"}, "order must be one of sequential, shuffled, got 'random'"),
        ({"length": 10}, "length must be below the 10 tokens of the source, got 10"),
    ],
)
def test_wrong_arguments(wrong, message):
    arguments = {"length": 2, "batch_size": 3} | wrong
    with pytest.raises(ValueError, match=message):
        Windows(counting(10), **arguments)


def test_wrong_steps_and_ranks():
    windows = Windows(counting(10), length=2, batch_size=3)
    with pytest.raises(IndexError, match="step must not be negative, got -1"):
        windows[-1]
    with pytest.raises(TypeError):
        windows[0.5]
    with pytest.raises(ValueError, match="rank must be from 0 to 2, one of 3, got 3"):
        windows.rank(3, of=3)
    with pytest.raises(ValueError, match="3 rows of a batch must be a multiple of the 2 ranks"):
        windows.rank(0, of=2)
