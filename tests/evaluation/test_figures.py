import sys

import pytest

from scale_invariant_attention.evaluation import PositionLoss
from scale_invariant_attention.evaluation.figures import draw_loss_by_position

ROWS = [PositionLoss(1, 2, 5.0, 0.1, 8), PositionLoss(2, 9, 4.0, None, 8)]


@pytest.mark.parametrize("train_length", [None, 4])
def test_a_picture(train_length):
    picture = draw_loss_by_position(ROWS, title="Loss", train_length=train_length)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[plots\]"):
        draw_loss_by_position(ROWS, title="Loss")
