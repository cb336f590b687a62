"""Measured statistics of scores, and the transform that depends on them."""

import copy

import pytest
import torch
from hugging_face_models import converted, left_padded, some_tokens, tiny
from transformers import AutoModelForCausalLM

from scale_invariant_attention import huggingface

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


def moments(layer):
    """sigma and mu of a layer's heads."""
    device = torch.device("cpu")
    return [layer.position_scheme.distance.value(name, device).tolist() for name in ("sigma", "mu")]


def test_every_head_of_every_layer_gets_its_measured_spread_and_mean():
    model = tiny()
    measured = huggingface.measure_scores(model, [some_tokens(2, LENGTH)])
    assert (measured.spread - 1).abs().min() > 0.01
    huggingface.convert(model, "scale-invariant-rope", calibration=measured)
    for layer, spread, mean in zip(model.model.layers, measured.spread, measured.mean, strict=True):
        assert moments(layer.self_attn) == [spread.tolist(), mean.tolist()]
    huggingface.convert(model, "scale-invariant-rope", calibration=measured.without_mean)
    assert "mean" not in model.config.scale_invariant_attention["calibration"]
    assert model.model.layers[0].self_attn.position_scheme.distance.value("mu", None) == 0.0


def test_scores_are_measured_as_they_enter_the_transform():
    """The first layer has the same inputs before and after, so the same scores are measured."""
    model, batches = tiny(), [some_tokens(2, LENGTH), some_tokens(1, LENGTH, seed=1)]
    measured = huggingface.measure_scores(model, batches)
    huggingface.convert(model, "scale-invariant-rope", calibration=measured)
    again = huggingface.measure_scores(model, batches)
    torch.testing.assert_close(again.spread[0], measured.spread[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again.mean[0], measured.mean[0], rtol=1e-5, atol=1e-5)
    # In the second layer inputs have changed.
    assert not torch.allclose(again.spread[1], measured.spread[1], rtol=1e-4)


def test_decoding_keeps_tables_and_equals_reading_at_once():
    calibration = huggingface.Calibration(0.5 + torch.rand(2, 4), torch.randn(2, 4))
    model = converted("llama", "scale-invariant-rope", calibration=calibration)
    ids = some_tokens(1, 30)
    with torch.inference_mode():
        whole, cache, steps = model(ids).logits, None, []
        for index in range(30):
            out = model(ids[:, index : index + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-3, atol=1e-4)
    kept = model.model.layers[0].self_attn.position_scheme._tables
    assert 30 <= kept.length < 200
    # Kept tables work in training too, and follow the dtype of the model.
    out = model(ids[:, :5], use_cache=True)
    model(ids[:, 5:7], past_key_values=out.past_key_values).logits.sum().backward()
    model.double()
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        last = model(ids[:, -1:], past_key_values=cache).logits
        torch.testing.assert_close(last, model(ids).logits[:, -1:])


def test_a_learned_sigma_starts_from_the_measured_one_and_learns(tmp_path):
    calibration = huggingface.Calibration(1.5 + torch.rand(2, 4))
    named = {"calibration": calibration, "learn_sigma": True, "learn_tau": True}
    model = converted("llama", "scale-invariant-rope", **named)
    for index, layer in enumerate(model.model.layers):
        sigma = layer.self_attn.position_scheme.distance.log_sigma
        torch.testing.assert_close(sigma.exp(), calibration.spread[index])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = some_tokens(2, LENGTH)
    model.train()(ids, labels=ids).loss.backward()
    optimiser.step()
    learned = model.model.layers[0].self_attn.position_scheme.distance.log_sigma
    assert learned.grad.ne(0).all()
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


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
