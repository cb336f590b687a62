"""Masked text: which tokens are hidden, at every length the same, and what a model reads instead."""

import numpy as np
import pytest
import torch

from scale_invariant_attention.data import TokenStream, standard_library
from scale_invariant_attention.data.masked_text import MaskedTextTask, Masking
from scale_invariant_attention.data.tasks import NOT_SCORED


def stream(count, vocab_size=256):
    drawn = np.random.default_rng(0).integers(0, vocab_size, count)
    return TokenStream([drawn.astype(np.uint8)], vocab_size=vocab_size, document_start=0)


def test_hidden_tokens_are_masked_and_scored_and_others_are_text():
    source = stream(5000)
    task = MaskedTextTask(source)
    inputs, targets = task.batch(500, range(9))
    text = torch.from_numpy(source.read(0, 4500).astype(np.int64)).view(9, 500)
    hidden = inputs == task.mask
    assert torch.equal(inputs[~hidden], text[~hidden])
    assert torch.equal(targets[hidden], text[hidden])
    assert (targets[~hidden] == NOT_SCORED).all()
    assert task.vocab_size == 257 and hidden.any(dim=1).all()


def test_the_same_tokens_are_hidden_at_every_length():
    task = MaskedTextTask(stream(4097), seed=3)
    hidden = {
        length: (task.batch(length, range(4096 // length))[0] == task.mask).flatten()
        for length in (64, 256, 1024, 4096)
    }
    assert all(torch.equal(it, hidden[4096]) for it in hidden.values())


@pytest.mark.parametrize("share", [0.05, 0.15, 0.6])
def test_the_share_of_hidden_tokens(share):
    task = MaskedTextTask(standard_library("validation"), Masking(share))
    found = (task.batch(1000, range(100))[0] == task.mask).double().mean().item()
    # Five standard deviations of 100,000 draws.
    assert abs(found - share) < 5 * (share * (1 - share) / 1e5) ** 0.5


def test_epochs_and_seeds_hide_other_tokens_of_the_same_windows():
    task = MaskedTextTask(stream(1001))
    first, again, later = (task.batch(100, [number])[0] for number in (0, 0, 10))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, MaskedTextTask(stream(1001), seed=1).batch(100, [0])[0])
    kept = (first != task.mask) & (later != task.mask)
    assert kept.float().mean() > 0.5 and torch.equal(first[kept], later[kept])


def test_training_reads_every_window_once_per_epoch_in_another_order():
    task = MaskedTextTask(stream(1001), order="shuffled", seed=1)
    inputs, targets = task.batch(100, range(10))
    texts = torch.where(inputs == task.mask, targets, inputs)
    ordered = torch.from_numpy(task.source.read(0, 1000).astype(np.int64)).view(10, 100)
    assert not torch.equal(texts, ordered)
    assert sorted(texts.tolist()) == sorted(ordered.tolist())


def test_every_window_has_a_token_to_predict():
    task = MaskedTextTask(stream(2001), Masking(0.001))
    inputs, _ = task.batch(4, range(500))
    assert ((inputs == task.mask).sum(dim=1) >= 1).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_that_hides_nothing_or_all_is_refused(share):
    with pytest.raises(ValueError, match="share must be above 0 and below 1"):
        Masking(share)
