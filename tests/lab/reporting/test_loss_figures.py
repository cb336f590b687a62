"""Figures of losses: what is drawn, not how."""

import sys

import pytest

from scale_invariant_attention.lab.reporting import evaluation_figures
from scale_invariant_attention.lab.reporting.evaluation_figures import (
    draw_loss_by_position,
    draw_sweep,
)
from scale_invariant_attention.lab.reporting.losses import SeedRow

ROWS = [
    {"start": 1, "stop": 2, "loss": 5.0, "standard_error": 0.1},
    {"start": 2, "stop": 9, "loss": 4.0, "standard_error": None},
]


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the figure that was drawn last."""
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
    later = [
        {"start": 16, "stop": 17, "loss": 3.0, "standard_error": 0.1},
        {"start": 20, "stop": 81, "loss": 2.0, "standard_error": 0.1},
    ]
    rows = {"rope": ROWS + later, "alibi": ROWS + later}
    draw_loss_by_position(rows, title="Loss", train_length=4)
    lines = {line.get_label(): line for line in drawn().get_lines()}
    assert {"RoPE", "ALiBi"} <= lines.keys()
    assert list(lines["RoPE"].get_ydata()) == [3.0, 2.0]
    assert list(lines["RoPE"].get_xdata()) == [16.0, 40.0]


def test_a_single_scheme_is_drawn_from_its_first_token(drawn):
    draw_loss_by_position({"rope": ROWS}, title="Loss")
    assert list(drawn().get_lines()[0].get_ydata()) == [5.0, 4.0]


def test_a_scheme_of_ones_own_can_be_drawn(drawn):
    draw_loss_by_position({"mine": ROWS}, title="Loss")
    assert drawn().get_lines()[0].get_label() == "mine"


def test_the_same_rows_give_the_same_bytes():
    first, second = (draw_loss_by_position({"rope": ROWS}, title="Loss") for _ in range(2))
    assert first == second


def test_a_sweep_has_a_line_a_length(drawn):
    rows = {
        value: SeedRow(f"{value:g}", {0: {256: value, 1024: 2 * value}}) for value in (10.0, 0.1)
    }
    picture = draw_sweep("tau", rows, title="tau", train_length=256)
    assert picture.startswith(b"\x89PNG")
    trained, longer = (container.lines[0] for container in drawn().containers)
    assert list(trained.get_xdata()) == [0.1, 10.0] == list(trained.get_ydata())
    assert list(longer.get_ydata()) == [0.2, 20.0]


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[plots\]"):
        draw_loss_by_position({"rope": ROWS}, title="Loss")
