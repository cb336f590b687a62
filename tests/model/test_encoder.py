"""Encoders: every scheme without causality, as the definition has it, and what they refuse."""

import pytest
import torch
from tiny_models import CASES, FOR_ENCODERS, assert_same, plain_logits, random_tokens, tiny_model

from scale_invariant_attention.analysis import gpt_scores
from scale_invariant_attention.data import SameTokens, standard_library
from scale_invariant_attention.evaluation import loss_by_length, loss_by_position
from scale_invariant_attention.model import GPT, GPTConfig


@pytest.mark.parametrize("case", FOR_ENCODERS)
def test_logits_are_those_of_the_definition(case):
    model, tokens = tiny_model(case, is_causal=False), random_tokens(2, 17)
    for row, found in zip(tokens, model(tokens), strict=True):
        assert_same(found, plain_logits(model, row))


@pytest.mark.parametrize("case", ["alibi", "rope", "logn-rope", "llama4", "swan", "window"])
def test_documents_and_padding_are_read_as_alone(case):
    model, tokens = tiny_model(case, is_causal=False), random_tokens(1, 20)
    alone = torch.cat([model(tokens[:, :8]), model(tokens[:, 8:])], dim=1)
    documents = torch.tensor([5] * 8 + [2] * 12)
    assert_same(model(tokens, documents=documents), alone)
    mask = torch.arange(20) >= 8
    assert_same(model(tokens, token_mask=mask[None])[:, 8:], alone[:, 8:])


def test_a_reversed_text_gives_reversed_logits_without_rotation():
    model, tokens = tiny_model("scale-invariant-nope", is_causal=False), random_tokens(2, 17)
    assert_same(model(tokens.flip(1)), model(tokens).flip(1))


def test_backends_agree_and_gradients_reach_every_weight():
    tokens = random_tokens(2, 33)
    model = tiny_model("learned tau", is_causal=False)
    logits = {}
    for backend in ("reference", "tiled"):
        model.backend = backend
        logits[backend] = model(tokens)
    assert_same(logits["tiled"], logits["reference"])
    model(tokens, targets=tokens).backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_later_tokens_change_earlier_logits():
    model, tokens = tiny_model("rope", is_causal=False), random_tokens(1, 9)
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % 50
    assert not torch.equal(model(tokens)[0, 0], model(other)[0, 0])


@pytest.mark.parametrize("case", sorted(CASES.keys() - set(FOR_ENCODERS)))
def test_schemes_defined_by_earlier_tokens_are_refused(case):
    slot = "key_bias" if "fox" in case else "memory"
    with pytest.raises(
        ValueError, match=rf"is_causal must be True for schemes with a {slot}, .*False"
    ):
        tiny_model(case, is_causal=False)


def test_what_predicts_the_next_token_refuses_an_encoder():
    model, tokens = tiny_model("rope", is_causal=False), random_tokens(1, 9)
    text = SameTokens(standard_library("validation"), (8,), at_most=8)
    document = standard_library("validation")
    calls = [
        model.new_cache,
        lambda: model.generate(tokens, 2),
        lambda: model.stream(tokens, 2),
        lambda: loss_by_length(model, text),
        lambda: loss_by_position(model, document, 8),
        lambda: gpt_scores(model, tokens, print),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"predicts the next token, .* got an encoder with is_ca"
        ):
            call()
    with pytest.raises(TypeError, match=r"is_causal must be True or False, got 1"):
        GPTConfig(is_causal=1)


def test_an_encoder_is_saved_and_opened(tmp_path):
    model, tokens = tiny_model("p-rope", is_causal=False), random_tokens(1, 9)
    model.save_pretrained(tmp_path)
    again = GPT.from_pretrained(tmp_path, backend="reference")
    assert again.config == model.config and not again.config.is_causal
    assert torch.equal(again(tokens), model(tokens))


def test_configurations_of_causal_models_are_what_they_were():
    assert "is_causal" not in GPTConfig().to_dict()
    assert GPTConfig(is_causal=False).to_dict()["is_causal"] is False
