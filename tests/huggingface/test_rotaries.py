"""Rotaries that replace a model's own, independently of the transform."""

import json
import math
import re
import warnings

import pytest
import torch
from hugging_face_models import by_definition, some_tokens, tiny
from transformers import AutoModelForCausalLM, LlamaConfig

from scale_invariant_attention import huggingface
from scale_invariant_attention.huggingface.rotary import ROTARIES
from scale_invariant_attention.schemes import NTK, RoPE, TruncatedRoPE, YaRN

TRAINED, FACTOR, HEAD = 16, 4.0, 16
CALIBRATION = huggingface.Calibration(torch.full((2, 4), 2.5))
PLAIN = RoPE().frequencies(HEAD, 1)
# Frequencies in texts up to the training length, and beyond it.
EXPECTED = {
    "own": (PLAIN, PLAIN),
    "ntk": (NTK(TRAINED).frequencies(HEAD, 64),) * 2,
    "dynamic": (PLAIN, NTK(TRAINED).frequencies(HEAD, 64)),
    "yarn": (YaRN(TRAINED).frequencies(HEAD, 64),) * 2,
    "yarn-beyond": (PLAIN, YaRN(TRAINED).frequencies(HEAD, 64)),
    "slow": (YaRN(TRAINED, 1e4, 2.0, 0.5).frequencies(HEAD, 64),) * 2,
    "slow-beyond": (PLAIN, YaRN(TRAINED, 1e4, 2.0, 0.5).frequencies(HEAD, 64)),
    "linear": (PLAIN / 4,) * 2,
    "fast": (PLAIN * (math.tau / PLAIN < TRAINED / 2),) * 2,
    "p-rope": (TruncatedRoPE().frequencies(HEAD, 64),) * 2,
}


def extended(rotary, family="llama", scheme="scale-invariant-rope", **named):
    model = tiny(family)
    options = {"factor": FACTOR, "train_length": TRAINED, **named}
    return huggingface.convert(model, scheme, rotary=rotary, **options)


@torch.no_grad()
def frequencies(model, length):
    model(some_tokens(1, length))
    return model.model.rotary_emb.inv_freq.double()


@pytest.mark.parametrize("rotary", EXPECTED)
def test_the_frequencies_of_every_rotary(rotary):
    model = extended(rotary, calibration=CALIBRATION)
    for length, expected in zip((TRAINED, 64), EXPECTED[rotary], strict=True):
        torch.testing.assert_close(frequencies(model, length), expected, rtol=1e-5, atol=1e-20)
    assert model.config.max_position_embeddings == (16 if rotary == "dynamic" else 64)
    restored = huggingface.convert(model, "rope").config
    assert restored.rope_parameters == {"rope_theta": 10_000.0, "rope_type": "default"}
    assert restored.max_position_embeddings == 64


def test_llama3_divides_low_frequencies_alone():
    model = extended("llama3", calibration=CALIBRATION, train_length=64)
    found = frequencies(model, 64) / PLAIN
    assert found[0].item() == pytest.approx(1.0)
    assert found[-1].item() == pytest.approx(1 / FACTOR)


def test_every_name_is_tested():
    assert set(EXPECTED) | {"llama3"} == set(ROTARIES)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-neox", "gemma3"])
@pytest.mark.parametrize("rotary", ROTARIES)
def test_the_transform_acts_on_top_of_every_rotary(family, rotary, tmp_path):
    model, ids = extended(rotary, family, calibration=CALIBRATION, tau=3.0), some_tokens(1, 40)

    def transform(distance):
        growth = 2 * torch.log1p(distance / 3)
        return torch.sqrt(1 + growth / 2.5**2), -growth

    with torch.no_grad():
        found = model(ids).logits
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(loaded(ids).logits, found)
        by_definition(loaded, transform)
        torch.testing.assert_close(found, loaded(ids).logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "own",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=lambda own: own["rope_type"],
)
def test_the_scaling_of_a_model_stays_or_is_replaced(own):
    theta = {"rope_theta": 5000.0}
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, vocab_size=96, rope_parameters=theta | own)
    model = AutoModelForCausalLM.from_config(config).eval()
    before = model.model.rotary_emb.inv_freq.clone()
    huggingface.convert(model, "scale-invariant-rope", calibration=CALIBRATION)
    assert model.config.rope_parameters.items() >= (theta | own).items()
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    huggingface.convert(model, "scale-invariant-rope", rotary="ntk", factor=4.0, sigma=2.0)
    assert model.config.rope_parameters["rope_type"] == "default"
    assert model.config.rope_parameters["rope_theta"] == pytest.approx(5000 * 4 ** (16 / 14))
    restored = huggingface.convert(model, "rope")
    assert torch.equal(restored.model.rotary_emb.inv_freq, before)


def test_rope_parameters_of_transformers_are_taken_as_they_are():
    given = {"rope_type": "linear", "factor": 3.0}
    model = huggingface.convert(tiny(), "scale-invariant-rope", rotary=given, sigma=2.0)
    assert model.config.rope_parameters == {"rope_theta": 10_000.0, **given}
    assert json.loads(model.config.to_json_string())["scale_invariant_attention"]["rotary"] == given


def test_a_rotary_can_be_replaced_without_the_transform():
    model = extended("yarn", scheme="rope")
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(frequencies(model, 64), EXPECTED["yarn"][1], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("named", "needs_training"),
    [
        ({"scheme": "scale-invariant-p-rope"}, True),
        ({"scheme": "scale-invariant-rope"}, True),
        ({"scheme": "alibi"}, True),
        ({"scheme": "nope"}, True),
        ({"scheme": "scale-invariant-p-rope", "calibration": CALIBRATION}, True),
        ({"scheme": "scale-invariant-rope", "calibration": CALIBRATION}, False),
        ({"scheme": "scale-invariant-rope", "sigma": 2.0, "rotary": "own"}, False),
        ({"scheme": "scale-invariant-rope", "sigma": 2.0, "rotary": "yarn", "factor": 4.0}, False),
        ({"scheme": "scale-invariant-rope", "sigma": 2.0, "rotary": "fast", "factor": 4.0}, True),
        ({"scheme": "yarn", "factor": 4.0}, False),
        ({"scheme": "rope-ntk"}, False),
        ({"scheme": "rope"}, False),
    ],
)
def test_a_warning_says_which_models_must_be_fine_tuned(named, needs_training):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        huggingface.convert(tiny(), **named)
    assert ["must be fine-tuned before use" in str(it.message) for it in caught] == (
        [True] if needs_training else []
    )


@pytest.mark.parametrize(
    ("scheme", "options", "advice"),
    [
        ("scale-invariant-p-rope", {}, "base, 1024, is above a quarter.*see docs/choose-tau.md"),
        ("p-rope", {"base": 33.0}, "base, 33, is above a quarter of the training length, 128"),
        ("scale-invariant-p-rope", {"base": 32.0}, None),
        ("scale-invariant-rope", {}, None),
    ],
)
def test_a_base_too_large_for_the_training_length_is_named(scheme, options, advice):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        huggingface.convert(tiny(max_position_embeddings=128), scheme, **options)
    (warning,) = caught
    assert issubclass(warning.category, UserWarning)
    if advice is None:
        assert "base" not in str(warning.message)
    else:
        assert re.search(advice, str(warning.message))
