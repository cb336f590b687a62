"""Measured statistics of scores, and calibrated scores with mean 0 and spread 1."""

import copy
from dataclasses import replace

import pytest
import torch
from hugging_face_models import converted, left_padded, some_tokens, tiny

from scale_invariant_attention import DistanceAffine, huggingface

LENGTH = 37


def test_measuring_leaves_a_model_unchanged():
    model = tiny().train()
    before, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    huggingface.measure_scores(model, [some_tokens(2, LENGTH)])
    assert model.training and model.config._attn_implementation == "sdpa"
    assert model.config.to_dict() == config
    assert model.state_dict().keys() == before.keys()
    assert not any("observe_scores" in vars(module) for module in model.modules())


def test_measuring_keeps_the_learned_parameters_of_a_switched_model():
    model = converted(scheme="logn-p-rope")
    before = copy.deepcopy(model.state_dict())
    model.set_attn_implementation("sdpa")
    huggingface.measure_scores(model, [some_tokens(2, LENGTH)])
    assert model.state_dict().keys() == before.keys()


def test_the_first_layers_scores_are_calibrated_exactly():
    """The first layer has the same inputs before and after, so its scores get mean 0 and spread 1."""
    model = tiny()
    batches = [some_tokens(2, LENGTH), some_tokens(1, LENGTH, seed=1)]
    # With the rotary of the calibrated model.
    measured = huggingface.measure_scores(huggingface.convert(model, "p-rope"), batches)
    assert (measured.spread - 1).abs().min() > 0.01
    huggingface.convert(model, calibration=measured)
    calibrated = huggingface.measure_scores(model, batches)
    torch.testing.assert_close(calibrated.spread[0], torch.ones(4).double(), rtol=1e-4, atol=1e-4)
    assert measured.mean[0].abs().min() > 0.01
    torch.testing.assert_close(calibrated.mean[0], torch.zeros(4).double(), rtol=0, atol=1e-4)
    huggingface.convert(model, calibration=measured.without_mean)
    assert "mean" not in model.config.scale_invariant_attention["calibration"]


def test_a_mean_shifts_captured_scores_and_not_the_models_logits():
    calibration = huggingface.Calibration(0.5 + torch.rand(2, 4), torch.randn(2, 4))
    model, seen = converted(calibration=calibration).double(), []
    huggingface.transformers_scores(model, some_tokens(2, LENGTH), seen.append)
    for layer, scores in zip(model.model.layers, seen, strict=True):
        shift = layer.self_attn.position_scheme.shift("cpu").unsqueeze(-1)
        gain, bias = scores.affine.gain, scores.affine.bias
        in_bias = replace(
            scores,
            query=scores.query[..., :-1],
            key=scores.key[..., :-1],
            affine=DistanceAffine(gain, bias + gain * shift),
            unrotated=None,
        )
        for found, expected in zip(scores.tiles(), in_bias.tiles(), strict=True):
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
            moved = (found.scores - expected.scores).amax((0, 2, 3))
            torch.testing.assert_close(moved, shift[:, 0], rtol=1e-9, atol=1e-9)


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
    with pytest.raises(ValueError, match="put a single batch into a list"):
        huggingface.measure_scores(tiny(), some_tokens(2, LENGTH))
    with pytest.raises(ValueError, match="spread must be positive"):
        huggingface.Calibration(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="finite"):
        huggingface.Calibration(torch.ones(2, 4), torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match=r"\[layers, heads\]"):
        huggingface.Calibration(torch.ones(4))
