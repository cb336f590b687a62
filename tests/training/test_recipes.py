"""The paper's numbers, stated independently."""

import pytest
import torch

from scale_invariant_attention.model import GPT
from scale_invariant_attention.training import Cosine, Trapezoid, recipe
from scale_invariant_attention.training.recipes import RECIPES

# Length, sequences per step, tokens per step, steps, total tokens in billions.
PAPER = {
    "162m-4k": (4096, 128, 524_288, 4578, 2.4),
    "162m-16k": (16_384, 32, 524_288, 4578, 2.4),
    "162m-64k": (65_536, 8, 524_288, 4578, 2.4),
    "304m-4k": (4096, 224, 917_504, 10_900, 10.0),
}


@pytest.mark.parametrize("name", PAPER)
def test_batches_and_steps(name):
    config = recipe(name)
    length, sequences, tokens, steps, billions = PAPER[name]
    assert (config.length, config.batch_size, config.steps) == (length, sequences, steps)
    assert config.length * config.batch_size == tokens
    assert round(tokens * steps / 1e9, 1) == billions
    assert config.batch_size % config.micro_batch_size == 0
    assert config.order == "sequential"
    assert (config.precision, config.compile) == ("bfloat16", True)


@pytest.mark.parametrize("name", PAPER)
def test_rates_and_schedules(name):
    config = recipe(name)
    large = name.startswith("304m")
    assert config.matrix_rate == (0.015 if large else 0.02)
    assert (config.embedding_rate, config.head_rate, config.scalar_rate) == (0.3, 0.002, 0.002)
    assert config.learning_schedule() == (Cosine() if large else Trapezoid(constant_steps=3270))
    assert config.clip_norm is None
    assert config.warmup_steps == 0


@pytest.mark.parametrize("name", PAPER)
def test_validation(name):
    config = recipe(name)
    assert config.validation_tokens == 10_485_760
    assert config.validation_lengths == (4096, 16_384, 65_536)
    assert all(config.validation_tokens % length == 0 for length in config.validation_lengths)
    assert config.validate_every == (250 if name.startswith("304m") else 125)


@pytest.mark.parametrize("name", PAPER)
def test_models_and_data(name):
    config = recipe(name)
    with torch.device("meta"):
        model = GPT(config.model_config())
    size = sum(p.numel() for p in model.parameters())
    large = name.startswith("304m")
    assert size == (304_349_184 if large else 162_201_600)
    assert model.config.head_dim == 128
    assert model.config.train_length == config.length
    assert config.data == ("shards:fineweb100B" if large else "shards:fineweb10B")
    assert config.scheme == "scale-invariant-p-rope"
    assert config.qk_norm


def test_the_names_of_the_recipes():
    assert set(RECIPES) == {"mini", "small", *PAPER}


def test_fields_can_be_changed_and_the_rest_stays():
    changed = recipe("162m-4k", scheme="logn-rope", seed=3)
    assert changed.to_dict() == recipe("162m-4k").to_dict() | {"scheme": "logn-rope", "seed": 3}


@pytest.mark.parametrize("name", ["mini", "small"])
def test_recipes_that_need_no_download_and_no_gpu(name):
    config = recipe(name)
    assert config.data == "standard-library"
    assert config.precision == "float32"
    assert config.vocab_size == 256


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match=r"no recipe '162m4k' \(did you mean '162m-4k'\?\)"):
        recipe("162m4k")
    with pytest.raises(ValueError, match="the recipes are: mini, small, 162m-4k"):
        recipe("llama")
    with pytest.raises(TypeError, match="no field 'step'"):
        recipe("mini", step=3)
