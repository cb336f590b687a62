"""The heat map of needles."""

from scale_invariant_attention.lab.reporting import evaluation_figures
from scale_invariant_attention.lab.reporting.evaluation_figures import draw_needles

CELLS = [
    {"length": 256, "start": 0.0, "stop": 0.5, "found": 3, "count": 4},
    {"length": 256, "start": 0.5, "stop": 1.0, "found": 4, "count": 4},
    {"length": 4096, "start": 0.5, "stop": 1.0, "found": 0, "count": 4},
]


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
