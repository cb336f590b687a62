"""The captured scores of a GPT are those that its attention uses."""

from functools import partial

import pytest
import torch
from tiny_models import TRAINED, WITHOUT_MEMORY, assert_same, random_tokens, tiny_model

from scale_invariant_attention.analysis import gpt_scores
from scale_invariant_attention.attention.api import attend
from scale_invariant_attention.model.block import Attention

LENGTH = 2 * TRAINED - 3


def gathered(model, tokens, **inputs):
    layers = []
    gpt_scores(model, tokens, layers.append, **inputs)
    return layers


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_the_op_gives_the_layers_own_output(case, packed):
    """With the values of each layer, the captured queries and keys give what it gave."""
    model, tokens = tiny_model(case), random_tokens(2, LENGTH)
    arguments = {}
    if packed:
        arguments = {
            "documents": torch.arange(LENGTH) // 15,
            "token_mask": torch.arange(LENGTH) >= torch.tensor([[0], [4]]),
        }
    inputs, outputs = [], []
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(lambda _, given, out: outputs.append(out))
            module.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    layers = gathered(model, tokens, **arguments)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for layer, attention, x, expected in zip(layers, attentions, inputs, outputs, strict=True):
        query = layer.query
        if layer.query_scale is not None:
            query = query * layer.query_scale.unsqueeze(-1)
        value = attention._split(attention.value(x))
        out = attend(
            query,
            layer.key,
            value,
            affine=layer.affine,
            key_bias=layer.key_bias,
            backend="reference",
            visibility=layer.visibility,
        )
        assert_same(attention.output(out.transpose(1, 2).flatten(2)), expected)


def test_before_rotary_is_the_model_that_rotates_nothing():
    tokens = random_tokens(1, LENGTH)
    rotated = gathered(tiny_model("rope"), tokens)[0]
    plain = gathered(tiny_model("nope"), tokens)[0]
    assert_same(rotated.before_rotary.query, plain.query)
    assert_same(rotated.before_rotary.key, plain.key)
    assert plain.before_rotary is plain
    assert not torch.allclose(rotated.query, plain.query)


def test_the_model_is_left_as_it_was():
    model, tokens = tiny_model("scale-invariant-p-rope"), random_tokens(1, LENGTH)
    before = model(tokens)
    assert not gathered(model, tokens)[0].query.requires_grad

    def fail(scores):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        gpt_scores(model, tokens, fail)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert_same(model(tokens), before)


def test_a_cache_is_refused():
    model = tiny_model("rope")
    read = partial(gpt_scores, model, random_tokens(1, 3), print)
    with pytest.raises(ValueError, match="cache must be None"):
        read(cache=model.new_cache())
