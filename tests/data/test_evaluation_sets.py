from itertools import islice

import numpy as np
import pytest
import torch

from scale_invariant_attention.data import (
    SameTokens,
    TokenStream,
    document_batches,
    document_spans,
    documents,
    spread_windows,
)


def counting(size):
    return TokenStream([np.arange(size, dtype=np.uint32)], vocab_size=size, document_start=size)


@pytest.fixture
def texts():
    """Documents of 4, 1, 6 and 2 tokens, each starting with 0, cut into two parts."""
    parts = [np.array([0, 1, 2, 3, 0, 0, 4, 5], np.uint8), np.array([6, 7, 8, 0, 9], np.uint8)]
    return TokenStream(parts, vocab_size=10, document_start=0)


@pytest.mark.parametrize(
    ("lengths", "at_most", "count"),
    [
        ((4, 16), None, 96),
        ((4, 16), 95, 80),
        ((6, 4), None, 96),
        ((100,), None, 100),
        ((1, 10), 10, 10),
    ],
)
def test_every_length_scores_the_same_targets_once(lengths, at_most, count):
    tokens = SameTokens(counting(101), lengths, at_most=at_most)
    assert tokens.count == count
    for length in lengths:
        for batch_size in (1, 3, 100):
            batches = list(tokens.batches(length, batch_size=batch_size))
            targets = torch.cat([targets for _, targets in batches])
            assert targets.flatten().tolist() == list(range(1, count + 1))
            assert targets.shape[1] == length
            assert all(torch.equal(inputs + 1, ahead) for inputs, ahead in batches)
            assert all(len(inputs) == batch_size for inputs, _ in batches[:-1])


def test_ranks_share_the_work():
    tokens = SameTokens(counting(101), (5, 20))
    shared = [islice(tokens.batches(5, batch_size=3), rank, None, 2) for rank in (0, 1)]
    targets = torch.cat([targets for part in shared for _, targets in part])
    assert sorted(targets.flatten().tolist()) == list(range(1, 101))


def test_the_first_tokens_can_be_skipped():
    tokens = SameTokens(counting(101), (5, 20), at_most=40, skip=30)
    for length in (5, 20):
        batches = list(tokens.batches(length, batch_size=3))
        targets = [token for _, batch in batches for token in batch.flatten().tolist()]
        assert targets == list(range(31, 71))
    assert SameTokens(counting(101), (5, 20), skip=30).count == 60
    with pytest.raises(ValueError, match="the source has 10 after the first 90"):
        SameTokens(counting(101), (20,), skip=90)


def test_lengths_that_cannot_be_compared_are_refused():
    with pytest.raises(
        ValueError, match=r"\[7, 16\] need a multiple of 112 tokens to score.*are 100"
    ):
        SameTokens(counting(101), (7, 16))
    with pytest.raises(
        ValueError, match="there are 10: the source has 100, of which at most 10 are to be scored"
    ):
        SameTokens(counting(101), (16,), at_most=10)
    for lengths in ((), (0, 4)):
        with pytest.raises(ValueError, match="each at least 1"):
            SameTokens(counting(101), lengths)
    with pytest.raises(ValueError, match=r"length must be one of \[4\], got 5"):
        SameTokens(counting(101), (4,)).batches(5, batch_size=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        SameTokens(counting(101), (4,)).batches(4, batch_size=0)


def test_documents_long_enough(texts):
    whole = [document.tolist() for document in documents(texts)]
    assert whole == [[0, 1, 2, 3], [0], [0, 4, 5, 6, 7, 8], [0, 9]]
    assert [document.tolist() for document in documents(texts, at_least=4)] == [whole[0], whole[2]]
    assert document_spans(texts, at_least=2).tolist() == [[0, 4], [5, 11], [11, 13]]
    assert document_spans(texts, at_least=7).tolist() == []


def test_batches_from_the_starts_of_documents(texts):
    ((inputs, targets),) = document_batches(texts, 3, batch_size=8)
    assert inputs.tolist() == [[0, 1, 2], [0, 4, 5]]
    assert targets.tolist() == [[1, 2, 3], [4, 5, 6]]
    first, second = document_batches(texts, 3, batch_size=1)
    assert torch.equal(torch.cat([first[0], second[0]]), inputs)
    ((inputs, _),) = document_batches(texts, 5, batch_size=8)
    assert inputs.tolist() == [[0, 4, 5, 6, 7]]


def test_no_document_long_enough_is_an_error(texts):
    with pytest.raises(ValueError, match="below the 6 tokens of the longest document, got 6"):
        document_batches(texts, 6, batch_size=1)


def test_windows_spread_over_the_whole_source():
    windows = spread_windows(counting(101), 10, 4)
    assert windows[:, 0].tolist() == [0, 30, 60, 90]
    assert windows[-1].tolist() == list(range(90, 100))
    assert spread_windows(counting(101), 100, 2)[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize(("length", "count"), [(101, 1), (0, 1), (10, 0)])
def test_windows_longer_than_the_source_are_refused(length, count):
    with pytest.raises(ValueError, match="length at most 100"):
        spread_windows(counting(101), length, count)
