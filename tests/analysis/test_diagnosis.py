"""A diagnosis finds anomalies planted in scores, and none in scores that fit the transform."""

import json
from dataclasses import asdict

import pytest
import torch

from scale_invariant_attention import DistanceAffine
from scale_invariant_attention.analysis import LayerScores, attention_by_length, diagnose
from scale_invariant_attention.analysis.diagnosis import (
    DRIFTS_FAR,
    NARROW_SCORES,
    OFF_CENTRE_SCORES,
    SPREAD_OUT,
    SPREADS_OUT,
    STAYS_NEAR,
    WIDE_SCORES,
)
from scale_invariant_attention.attention import Visibility

LENGTH = 3000


def measured(scale=1.0, mean=0.0, affine=None, length=LENGTH, **ranges):
    """Random queries and keys as a model: scores are Gaussian, with a spread and a mean."""

    def source(tokens, visit):
        generator = torch.Generator().manual_seed(0)
        query, key = torch.randn(2, 2, 4, length, 64, generator=generator).unbind()
        # One more dimension, in which all agree, moves every score alike.
        query, key = (
            torch.cat([it, torch.full((2, 4, length, 1), part)], -1)
            for it, part in ((query, 1.0), (key, mean / scale * 8))
        )
        visit(LayerScores(0, query, key, affine, scale=scale / 8))

    return attention_by_length(source, torch.zeros(2, length), (length,), queries=32, **ranges)[0]


TRANSFORM = DistanceAffine.scale_invariant(LENGTH, 1.0)


@pytest.mark.parametrize(("length", "ratio"), [(1001, 10), (110, 10), (1024, 2), (1024, 1.5)])
def test_ranges_of_few_tokens_are_no_finding(length, ratio):
    affine = DistanceAffine.scale_invariant(length)
    found = diagnose(
        measured(affine=affine, length=length, ratio=ratio), scale_invariant=True, qk_norm=True
    )
    assert any(it.start >= 10 and it.part > SPREAD_OUT for it in found.layers[0].ranges)
    assert not found.advice

    plain = diagnose(measured(length=length, ratio=ratio), scale_invariant=False, qk_norm=True)
    assert SPREADS_OUT in plain.advice


@pytest.mark.parametrize(
    ("settings", "findings"),
    [
        ({"affine": TRANSFORM}, set()),
        ({}, {DRIFTS_FAR, SPREADS_OUT}),
        ({"affine": TRANSFORM, "scale": 0.5}, {NARROW_SCORES, STAYS_NEAR}),
        ({"affine": TRANSFORM, "scale": 1.6}, {WIDE_SCORES, DRIFTS_FAR}),
        ({"affine": TRANSFORM, "mean": -2.5}, {OFF_CENTRE_SCORES, STAYS_NEAR}),
        (
            {"affine": DistanceAffine.alibi(LENGTH, torch.full((4,), 0.02))},
            {STAYS_NEAR, SPREADS_OUT},
        ),
    ],
)
def test_findings(settings, findings):
    found = diagnose(measured(**settings), scale_invariant="affine" in settings, qk_norm=True)
    (layer,) = found.layers
    assert set(layer.findings) == findings
    assert set(found.advice) == findings
    assert layer.score_spread == pytest.approx(settings.get("scale", 1.0), rel=0.05)
    assert layer.score_mean == pytest.approx(settings.get("mean", 0.0), abs=0.05)
    assert sum(part.share for part in layer.ranges) == pytest.approx(1.0)


@pytest.mark.parametrize("sigma", [0.5, 1.6, 3.0])
def test_a_transform_that_knows_the_spread_of_scores_needs_no_spread_of_one(sigma):
    affine = DistanceAffine.scale_invariant(LENGTH, 1.0, sigma=sigma)
    wide = measured(affine=affine, scale=sigma)
    (layer,) = diagnose(wide, scale_invariant=True, qk_norm=False, knows_spread=True).layers
    assert not {DRIFTS_FAR, STAYS_NEAR, WIDE_SCORES, NARROW_SCORES} & set(layer.findings)


def test_advice_depends_on_what_is_there():
    plain = diagnose(measured(scale=2.0), scale_invariant=False, qk_norm=False)
    assert "qk_norm=True" in plain.advice[WIDE_SCORES]
    assert "--scheme scale-invariant-p-rope" in plain.advice[DRIFTS_FAR]
    ours = diagnose(measured(scale=2.0), scale_invariant=True, qk_norm=True)
    assert "lower tau" in ours.advice[DRIFTS_FAR]
    assert "already normalised" in ours.advice[WIDE_SCORES]


def test_contexts_too_short_for_a_slope():
    def source(tokens, visit):
        query = torch.randn(1, 1, 50, 4, generator=torch.Generator().manual_seed(0))
        visit(LayerScores(0, query, query))

    (short,) = attention_by_length(source, torch.zeros(1, 50), (50,))
    (layer,) = diagnose(short, scale_invariant=False, qk_norm=True).layers
    assert layer.slope is None and layer.slopes is None
    assert not {DRIFTS_FAR, STAYS_NEAR} & set(layer.findings)


def test_a_head_without_mass_in_a_range_leaves_the_slopes_of_the_others():
    """With a steep ALiBi, the mass of far ranges underflows to zero."""
    slopes = torch.tensor([0.001, 0.01, 0.02, 3.0])
    found = diagnose(
        measured(affine=DistanceAffine.alibi(LENGTH, slopes)), scale_invariant=False, qk_norm=True
    )
    low, high = found.layers[0].slopes
    alone = diagnose(
        measured(affine=DistanceAffine.alibi(LENGTH, torch.tensor([0.001, 0.01, 0.02, 0.02]))),
        scale_invariant=False,
        qk_norm=True,
    )
    assert alone.layers[0].slopes[1] == high
    assert low == pytest.approx(alone.layers[0].slopes[0], rel=0.2)


def test_ranges_beyond_a_window_have_no_sparsity_and_can_be_json():
    def source(tokens, visit):
        query = torch.randn(1, 2, 500, 8, generator=torch.Generator().manual_seed(0))
        visit(LayerScores(0, query, query, visibility=Visibility(window=40)))
        visit(LayerScores(1, query, query))

    (found,) = attention_by_length(source, torch.zeros(1, 500), (500,))
    near, far = diagnose(found, scale_invariant=False, qk_norm=True).layers
    assert near.ranges[-1].share == 0
    assert (near.ranges[-1].tokens, near.ranges[-1].part) == (None, None)
    assert near.slope is None and near.slopes is None
    assert far.ranges[-1].part > 0
    # Over all layers it is that of those which see the range.
    entropy = found.overall("entropy")[-1].mean
    assert entropy == pytest.approx(float(found.layers[1].entropy[..., -1].mean()))
    json.dumps([asdict(near), found.to_dict()], allow_nan=False)


def test_advice_for_layers_with_and_without_the_transform():
    def source(tokens, visit):
        for layer in (0, 1):
            query, key = torch.randn(
                2, 1, 4, LENGTH, 64, generator=torch.Generator().manual_seed(0)
            )
            visit(LayerScores(layer, query, key, scale=2 / 8))

    (found,) = attention_by_length(source, torch.zeros(1, LENGTH), (LENGTH,), queries=32)
    kinds = [[True, True], [False, False], [True, False]]
    with_it, without, mixed = (
        diagnose(found, scale_invariant=each, qk_norm=True).advice for each in kinds
    )
    assert with_it == diagnose(found, scale_invariant=True, qk_norm=True).advice
    assert with_it.keys() == without.keys() == mixed.keys() == {WIDE_SCORES, DRIFTS_FAR}
    for finding, text in mixed.items():
        assert text.startswith(f"In layers with the transform: {with_it[finding]}")
        assert text.endswith(f"In the others: {without[finding]}")
