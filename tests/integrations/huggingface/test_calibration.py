"""Scores are measured as a loop over pairs would, and calibrated scores have mean 0 and spread 1."""

import copy

import pytest
import torch
from hugging_face_models import converted, left_padded, some_tokens, tiny

from scale_invariant_attention.integrations import huggingface
from scale_invariant_attention.integrations.huggingface.score_statistics import ScoreSums

LENGTH = 37


def test_sums_are_those_of_visible_pairs():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, LENGTH, 8, generator=generator, dtype=torch.float64)
    key = torch.randn(2, 2, LENGTH, 8, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, LENGTH, generator=generator) > 0.2
    sums = ScoreSums.zeros(4)
    for row in range(2):
        one = slice(row, row + 1)
        sums.add(query[one], key[one], scale=0.5, skip_keys=1, key_mask=mask[one], window=9)
    for head in range(4):
        pairs = [
            0.5 * float(query[row, head, i] @ key[row, head // 2, j])
            for row in range(2)
            for i in range(LENGTH)
            for j in range(max(1, i - 8), i + 1)
            if mask[row, j]
        ]
        scores = torch.tensor(pairs, dtype=torch.float64)
        assert sums.mean[head] == pytest.approx(scores.mean().item(), rel=1e-4, abs=1e-6)
        assert sums.spread[head] == pytest.approx(scores.std(correction=0).item(), rel=1e-4)


def test_small_tiles_sum_to_the_same(monkeypatch):
    query, key = torch.randn(2, 2, 4, LENGTH, 8).unbind()
    whole, parts = ScoreSums.zeros(4), ScoreSums.zeros(4)
    whole.add(query, key)
    monkeypatch.setattr(
        "scale_invariant_attention.integrations.huggingface.score_statistics.PAIRS", 1000
    )
    parts.add(query, key)
    assert parts.count == whole.count == 2 * LENGTH * (LENGTH + 1) / 2
    torch.testing.assert_close(parts.spread, whole.spread)


def test_measuring_leaves_a_model_as_it_was():
    model = tiny().train()
    before, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    huggingface.measure_scores(model, [some_tokens(2, LENGTH)])
    assert model.training and model.config._attn_implementation == "sdpa"
    assert model.config.to_dict() == config
    assert model.state_dict().keys() == before.keys()
    assert not any("observe_scores" in vars(module) for module in model.modules())


def test_the_first_layers_scores_are_calibrated_exactly():
    """The first layer reads the same before and after, so its scores get mean 0 and spread 1."""
    model = tiny()
    batches = [some_tokens(2, LENGTH), some_tokens(1, LENGTH, seed=1)]
    # With the rotary that the calibrated model will have.
    measured = huggingface.measure_scores(huggingface.convert(model, "p-rope"), batches)
    assert (measured.spread - 1).abs().min() > 0.01
    huggingface.convert(model, calibration=measured)
    calibrated = huggingface.measure_scores(model, batches)
    torch.testing.assert_close(calibrated.spread[0], torch.ones(4).double(), rtol=1e-4, atol=1e-4)
    # The offset is part of the bias, behind the measurement.
    torch.testing.assert_close(
        calibrated.mean[0], (measured.mean / measured.spread)[0], rtol=1e-3, atol=1e-4
    )
    huggingface.convert(model, calibration=measured.without_mean)
    assert "mean" not in model.config.scale_invariant_attention["calibration"]


def test_padding_is_not_measured():
    model = converted()
    rows = [some_tokens(LENGTH), some_tokens(20, seed=1)]
    ids, mask = left_padded(rows)
    together = huggingface.measure_scores(model, [{"input_ids": ids, "attention_mask": mask}])
    apart = huggingface.measure_scores(model, [row[None] for row in rows])
    torch.testing.assert_close(together.spread, apart.spread, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.mean, apart.mean, rtol=1e-4, atol=1e-5)


def test_wrong_calibrations_are_refused():
    with pytest.raises(ValueError, match="at least one batch"):
        huggingface.measure_scores(tiny(), [])
    with pytest.raises(ValueError, match="spread must be positive"):
        huggingface.Calibration(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="finite"):
        huggingface.Calibration(torch.ones(2, 4), torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match=r"\[layers, heads\]"):
        huggingface.Calibration(torch.ones(4))
