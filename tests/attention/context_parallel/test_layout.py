"""Layouts cover the sequence once, round trips are exact, and wrong ones are errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scale_invariant_attention as sia

kinds = st.sampled_from(["zigzag", "contiguous"])


@given(st.integers(0, 200), st.integers(1, 9), kinds)
def test_ranks_hold_every_token_once_and_as_many(length, ranks, kind):
    layouts = [sia.SequenceLayout(length, ranks, rank, kind) for rank in range(ranks)]
    held = torch.cat([layout.positions() for layout in layouts])
    assert torch.equal(held.sort().values, torch.arange(length))
    lengths = [layout.local_length for layout in layouts]
    assert [len(layout.positions()) for layout in layouts] == lengths
    assert max(lengths) - min(lengths) <= (2 if kind == "zigzag" else 1)
    for layout in layouts:
        chunks = [torch.arange(chunk.start, chunk.stop) for chunk in layout.chunks]
        assert torch.equal(torch.cat(chunks), layout.positions())


@given(st.integers(0, 60), st.integers(1, 5), kinds, st.integers(-3, 2), st.integers(0, 2**32))
def test_parts_put_at_their_positions_are_the_whole(length, ranks, kind, dim, seed):
    shape = [2, 3, 4]
    shape[dim] = length
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    found = torch.full_like(whole, torch.nan)
    for rank in range(ranks):
        shard = sia.shard_sequence(whole, sia.SequenceLayout(length, ranks, rank, kind), dim)
        found.index_copy_(dim, shard.positions, shard.tensor)
    assert torch.equal(found, whole)


def test_zigzag_pairs_an_early_with_a_late_chunk():
    layout = sia.SequenceLayout(length=18, ranks=3, rank=1)
    assert layout.chunks == (range(3, 6), range(12, 15))
    assert layout.of_rank(0).chunks == (range(3), range(15, 18))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 2, 2), "rank must be below ranks = 2, got 2"),
        ((10, 0, 0), "ranks must be at least 1, got 0"),
        ((-1, 2, 0), "length must be at least 0, got -1"),
        ((10, 2, 0, "striped"), "kind must be 'contiguous' or 'zigzag', got 'striped'"),
    ],
)
def test_impossible_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sia.SequenceLayout(*arguments)


def test_tensors_of_another_length_are_refused():
    layout = sia.SequenceLayout(length=10, ranks=2, rank=0)
    with pytest.raises(ValueError, match=r"must have length 10 along dim 1 by its layout"):
        sia.shard_sequence(torch.zeros(1, 9), layout)
    shard = sia.shard_sequence(torch.zeros(1, 10), layout)
    with pytest.raises(ValueError, match=r"must have length 5 along dim 1 by its layout"):
        shard.with_tensor(torch.zeros(1, 10, 4))
    assert shard.with_tensor(torch.zeros(1, 8, 5), dim=2).layout is layout


def test_without_a_process_group_nothing_runs():
    query = torch.zeros(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="there is no process group: start the processes with"):
        sia.context_parallel_attention(query, query, query)
    with pytest.raises(RuntimeError, match="there is no process group"):
        sia.SequenceLayout.of_group(10)
