"""Figures of losses and needles: what is drawn."""

import sys

import pytest

from scale_invariant_attention.evaluation import PositionLoss
from scale_invariant_attention.lab.measurements import NeedleCell
from scale_invariant_attention.lab.reporting import evaluation_figures
from scale_invariant_attention.lab.reporting.evaluation_figures import (
    draw_loss_by_position,
    draw_needles,
    sweep_figure,
)
from scale_invariant_attention.lab.seeds import SeedRow

ROWS = [PositionLoss(1, 2, 5.0, 0.1, 3), PositionLoss(2, 9, 4.0, None, 3)]


CELLS = [
    NeedleCell(256, 0.0, 0.5, found=3, count=4, low=0.3, high=1.0),
    NeedleCell(256, 0.5, 1.0, found=4, count=4, low=0.5, high=1.0),
    NeedleCell(4096, 0.5, 1.0, found=0, count=4, low=0.0, high=0.5),
]


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the last figure drawn."""
    figures = []
    new_figure = evaluation_figures.new_figure
    monkeypatch.setattr(
        evaluation_figures,
        "new_figure",
        lambda *size: figures.append(new_figure(*size)) or figures[-1],
    )
    return lambda: figures[-1].axes[0]


@pytest.mark.parametrize("train_length", [None, 4])
def test_a_picture(train_length):
    picture = draw_loss_by_position({"rope": ROWS}, title="Loss", train_length=train_length)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_every_scheme_has_its_line_and_its_name(drawn):
    later = [PositionLoss(16, 17, 3.0, 0.1, 3), PositionLoss(20, 81, 2.0, 0.1, 3)]
    rows = {"rope": ROWS + later, "alibi": ROWS + later}
    draw_loss_by_position(rows, title="Loss", train_length=4)
    lines = {line.get_label(): line for line in drawn().get_lines()}
    assert {"RoPE", "ALiBi"} <= lines.keys()
    assert list(lines["RoPE"].get_ydata()) == [3.0, 2.0]
    assert list(lines["RoPE"].get_xdata()) == [16.0, 40.0]


def test_a_single_scheme_is_drawn_from_its_first_token(drawn):
    draw_loss_by_position({"rope": ROWS}, title="Loss")
    assert list(drawn().get_lines()[0].get_ydata()) == [5.0, 4.0]


def test_an_unregistered_scheme_can_be_drawn(drawn):
    draw_loss_by_position({"mine": ROWS}, title="Loss")
    assert drawn().get_lines()[0].get_label() == "mine"


def test_the_same_rows_give_the_same_bytes():
    first, second = (draw_loss_by_position({"rope": ROWS}, title="Loss") for _ in range(2))
    assert first == second


def test_a_sweep_has_one_line_per_length(drawn):
    rows = {
        value: SeedRow(f"{value:g}", {0: {256: value, 1024: 2 * value}}) for value in (10.0, 0.1)
    }
    sweep_figure("tau", rows, title="tau", train_length=256)
    trained, longer = (container.lines[0] for container in drawn().containers)
    assert list(trained.get_xdata()) == [0.1, 10.0] == list(trained.get_ydata())
    assert list(longer.get_ydata()) == [0.2, 20.0]


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[plots\]"):
        draw_loss_by_position({"rope": ROWS}, title="Loss")


def test_shares_stand_where_they_belong(monkeypatch):
    drawn = []
    as_png = evaluation_figures.as_png
    monkeypatch.setattr(
        evaluation_figures, "as_png", lambda figure: drawn.append(figure) or as_png(figure)
    )
    picture = draw_needles(CELLS, title="rope", train_length=256)
    assert picture.startswith(b"\x89PNG")
    axes = drawn[0].axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "0.75",
        (0, 1): "1.00",
        (1, 1): "0.00",
    }
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["256\n(trained)", "4,096"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0%-50%", "50%-100%"]


def test_the_same_picture_for_the_same_cells():
    assert draw_needles(CELLS, title="rope") == draw_needles(CELLS, title="rope")
