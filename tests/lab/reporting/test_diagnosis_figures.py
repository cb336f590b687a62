"""The figure of a diagnosis."""

import math
from dataclasses import replace

from scale_invariant_attention.analysis import Diagnosis
from scale_invariant_attention.analysis.diagnosis import LayerDiagnosis, RangeDiagnosis
from scale_invariant_attention.lab.reporting import attention_figures
from scale_invariant_attention.lab.reporting.attention_figures import draw_diagnosis

RANGES = (
    RangeDiagnosis(0, 10, share=0.5, tokens=5.0, part=0.5),
    RangeDiagnosis(10, 100, share=0.3, tokens=9.0, part=0.1),
    RangeDiagnosis(100, 1000, share=0.2, tokens=45.0, part=0.05),
)


def layer(index):
    return LayerDiagnosis(
        index,
        score_mean=-1.0,
        score_spread=1.2,
        score_spreads=(1.0, 1.5),
        kurtosis=3.0,
        slope=0.0,
        slopes=(-0.1, 0.1),
        recent_share=0.5,
        ranges=RANGES,
        findings=(),
    )


def test_shares_per_decade_sparsity_and_scores(monkeypatch):
    drawn = []
    as_png = attention_figures.as_png
    monkeypatch.setattr(
        attention_figures, "as_png", lambda figure: drawn.append(figure) or as_png(figure)
    )
    layers = [layer(index) for index in range(12)]
    unseen = replace(RANGES[2], share=0.0, part=None)
    layers[3] = replace(layers[3], ranges=(*RANGES[:2], unseen))
    assert draw_diagnosis(Diagnosis(1000, 0.0, tuple(layers), {}), title="rope").startswith(
        b"\x89PNG"
    )
    mass, part, scores = drawn[0].axes
    assert list(mass.get_lines()[0].get_ydata()) == [0.3, 0.2]
    assert list(part.get_lines()[11].get_ydata()) == [0.1, 0.05]
    # Beyond the window of a layer there is nothing to draw.
    first, beyond = part.get_lines()[3].get_ydata()
    assert first == 0.1 and math.isnan(beyond)
    assert scores.get_xlabel() == "layer"
