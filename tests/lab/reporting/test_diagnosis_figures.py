"""The picture of a diagnosis."""

import math

from scale_invariant_attention.lab.reporting import attention_figures
from scale_invariant_attention.lab.reporting.attention_figures import draw_diagnosis

RANGES = [
    {"start": 0, "stop": 10, "share": 0.5, "tokens": 5.0, "part": 0.5},
    {"start": 10, "stop": 100, "share": 0.3, "tokens": 9.0, "part": 0.1},
    {"start": 100, "stop": 1000, "share": 0.2, "tokens": 45.0, "part": 0.05},
]
LAYER = {"score_mean": -1.0, "score_spread": 1.2, "score_spreads": (1.0, 1.5), "ranges": RANGES}


def test_shares_a_decade_parts_and_scores(monkeypatch):
    drawn = []
    as_png = attention_figures.as_png
    monkeypatch.setattr(
        attention_figures, "as_png", lambda figure: drawn.append(figure) or as_png(figure)
    )
    found = {"length": 1000, "layers": [{"layer": it, **LAYER} for it in range(12)]}
    found["layers"][3]["ranges"] = [*RANGES[:2], {**RANGES[2], "share": 0.0, "part": None}]
    assert draw_diagnosis(found, title="rope").startswith(b"\x89PNG")
    mass, part, scores = drawn[0].axes
    assert list(mass.get_lines()[0].get_ydata()) == [0.3, 0.2]
    assert list(part.get_lines()[11].get_ydata()) == [0.1, 0.05]
    # Beyond the window of a layer there is nothing to draw.
    first, beyond = part.get_lines()[3].get_ydata()
    assert first == 0.1 and math.isnan(beyond)
    assert scores.get_xlabel() == "layer"
