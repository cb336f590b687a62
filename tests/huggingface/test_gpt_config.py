"""The configuration: conversion from and to GPTConfig, saving, and refusals."""

import pytest
from tiny_models import WITHOUT_MEMORY, tiny_config
from transformers import AutoConfig

from scale_invariant_attention.huggingface import ScaleInvariantGPTConfig
from scale_invariant_attention.model import GPTConfig


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_conversion_to_gpt_config_and_back(case, tmp_path):
    ours = tiny_config(case)
    ScaleInvariantGPTConfig.of(ours, eos_token_id=7).save_pretrained(tmp_path)
    back = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(back, ScaleInvariantGPTConfig)
    assert back.gpt() == ours
    assert back.eos_token_id == 7


def test_the_defaults_are_those_of_gpt_config():
    assert ScaleInvariantGPTConfig().gpt() == GPTConfig()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme_name": None}, "scheme without a name"),
        ({"scheme_name": "ropes"}, "did you mean 'rope'"),
        ({"hidden_size": 50, "num_attention_heads": 3}, "multiple of heads"),
        ({"scheme_name": "yarn"}, "train_length must be given"),
        ({"tie_word_embeddings": True}, "separate head"),
    ],
)
def test_impossible_models_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ScaleInvariantGPTConfig(**changes)
