"""Whole models side by side."""

import pytest
import torch

from scale_invariant_attention.lab.benchmark import models
from scale_invariant_attention.lab.benchmark.models import plain_attention
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.model.block import Attention

TINY = GPTConfig(vocab_size=32, layers=2, width=32, heads=2)


def tiny_problem(pass_name):
    return models.ModelProblem("tiny", TINY, pass_name, batch=2, length=24)


def test_the_baseline_is_rope():
    ours = GPT(GPTConfig(vocab_size=32, layers=2, width=32, heads=2, scheme_name="rope"))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(32, (2, 24))
    with torch.no_grad():
        expected = ours(tokens)
        cache = ours.new_cache()
        ours(tokens[:, :-1], cache=cache)
        for module in ours.modules():
            if isinstance(module, Attention):
                module.attend = plain_attention
        torch.testing.assert_close(ours(tokens), expected, atol=1e-4, rtol=1e-4)
        last = ours(tokens[:, -1:], cache=cache)
    torch.testing.assert_close(last, expected[:, -1:], atol=1e-4, rtol=1e-4)


def test_a_training_step_trains(monkeypatch):
    losses = []
    forward = GPT.forward

    def recorded(model, *arguments, **options):
        loss = forward(model, *arguments, **options)
        losses.append(loss.item())
        return loss

    monkeypatch.setattr(GPT, "forward", recorded)
    torch.manual_seed(0)
    row = models.measure_model(tiny_problem(models.TRAIN), seconds=0)
    assert row.rounds == 3
    assert row.attention_share is None
    # Steps of two models took turns, the first of each to warm up.
    assert len(losses) == 2 * (1 + row.rounds)
    assert losses[-1] < losses[0]


def test_a_decoding_step_stays_at_its_length_and_tells_the_share_of_attention(monkeypatch):
    lengths = []
    attend = Attention.attend

    def recorded(layer, query, key, *others):
        lengths.append((query.shape[2], key.shape[2]))
        return attend(layer, query, key, *others)

    monkeypatch.setattr(Attention, "attend", recorded)
    row = models.measure_model(tiny_problem(models.DECODE), seconds=0)
    assert set(lengths) == {(1, 24)}
    assert len(lengths) == TINY.layers * (1 + row.rounds)
    assert 0 < row.attention_share < 1


@pytest.mark.parametrize("quick", [True, False])
def test_the_problems_are_mini_and_heads_of_64(quick):
    mini, step, decode = models.model_problems(quick)
    assert mini.config == GPTConfig.preset("mini")
    assert step.config.head_dim == decode.config.head_dim == 64
    assert decode.pass_name == models.DECODE
    if not quick:
        assert step.config.layers == 12
        assert decode.length == 32_768
