"""The same tokens at every length, each scored once."""

import numpy as np
import pytest
import torch
from position_models import LossIsPosition, LossIsTarget

from scale_invariant_attention.data import SameTokens, TokenStream, standard_library
from scale_invariant_attention.evaluation import loss_by_length
from scale_invariant_attention.model import GPT, GPTConfig

STREAM = TokenStream([np.arange(1, 130, dtype=np.uint8)], vocab_size=256, document_start=1)


def test_every_target_is_scored_once_at_every_length():
    model = LossIsPosition()
    rows = loss_by_length(model, SameTokens(STREAM, (4, 16, 64)))
    targets = torch.cat([targets.flatten() for _, targets in model.shown])
    assert targets.tolist() == list(range(2, 130)) * 3
    assert [(row.length, row.tokens) for row in rows] == [(4, 128), (16, 128), (64, 128)]
    assert [row.loss for row in rows] == [1.5, 7.5, 31.5]


def test_the_error_is_that_of_stretches_of_the_longest_length():
    rows = loss_by_length(LossIsTarget(), SameTokens(STREAM, (4, 64)))
    # The targets 2 to 129, in two stretches of 64 whose means differ by 64.
    for row in rows:
        assert row.loss == pytest.approx(65.5)
        assert row.standard_error == pytest.approx(32.0)


def test_a_single_stretch_has_no_error():
    (row,) = loss_by_length(LossIsTarget(), SameTokens(STREAM, (128,)))
    assert row.standard_error is None


def test_progress_counts_tokens():
    seen = []
    loss_by_length(LossIsTarget(), SameTokens(STREAM, (4, 64)), progress=seen.append)
    assert seen[-1] == 256
    assert seen == sorted(seen)


def test_a_gpt_has_the_loss_that_its_forward_gives():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=256, layers=1, width=32, heads=2))
    torch.nn.init.normal_(model.head.weight)
    tokens = SameTokens(standard_library("validation"), (64,), at_most=256)
    (row,) = loss_by_length(model, tokens)
    ((inputs, targets),) = tokens.batches(64, batch_size=4)
    assert row.loss == pytest.approx(model(inputs, targets=targets).item(), rel=1e-5)
