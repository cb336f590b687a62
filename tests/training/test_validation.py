import pytest
import torch
from position_models import LossIsPosition, LossIsTarget

from scale_invariant_attention.data import SameTokens, standard_library
from scale_invariant_attention.evaluation import loss_by_length
from scale_invariant_attention.training.loop import validation_losses
from scale_invariant_attention.training.ranks import Ranks

CPU = torch.device("cpu")
TOKENS = SameTokens(standard_library("validation"), (512, 4096), at_most=65_536)


def test_alone_it_is_the_loss_by_length():
    found = validation_losses(LossIsTarget(), TOKENS, Ranks(0, 1, CPU))
    expected = {row.length: row.loss for row in loss_by_length(LossIsTarget(), TOKENS)}
    assert found == pytest.approx(expected)
    assert list(found) == [512, 4096]


def test_ranks_divide_the_work_and_add_up(monkeypatch):
    parts = {}

    def remember(self, *values):
        parts.setdefault(self.rank, []).extend(values)
        return values

    monkeypatch.setattr(Ranks, "sum", remember)
    for rank in range(3):
        model = LossIsPosition()
        validation_losses(model, TOKENS, Ranks(rank, 3, CPU))
        # Four batches a length: all ranks call the model as often, and one batch alone counts twice.
        assert len(model.shown) == 2 * 2
    sums = [sum(by_length) for by_length in zip(*parts.values(), strict=True)]
    losses, counts = sums[::2], sums[1::2]
    assert counts == [TOKENS.count] * 2
    assert [total / TOKENS.count for total in losses] == [511 / 2, 4095 / 2]
