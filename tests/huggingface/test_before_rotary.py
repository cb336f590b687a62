"""Queries and keys before rotary equal the outputs of a family's projections and norms, in float64."""

from functools import partial

import pytest
import torch
from hugging_face_models import CONFIGS, FAMILIES, GROUPED, SIZES, some_tokens, tiny
from transformers import AutoModelForCausalLM, Cohere2Config, CohereConfig, GlmConfig, PhiConfig

from scale_invariant_attention import huggingface
from scale_invariant_attention.analysis import attention_by_length, score_statistics
from scale_invariant_attention.huggingface import transformers_scores

LENGTH = 23
# Families whose rotary is interleaved, covers part of each head, or is missing in some layers.
OTHERS = {
    "glm": lambda: GlmConfig(**GROUPED, head_dim=16, partial_rotary_factor=0.5),
    "phi": lambda: PhiConfig(**SIZES, partial_rotary_factor=0.5),
    "cohere": lambda: CohereConfig(**GROUPED),
    "cohere2": lambda: Cohere2Config(
        **GROUPED, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0}


def model_of(family):
    if family in CONFIGS:
        return tiny(family).double()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(OTHERS[family]()).eval().double()


def seen(model, tokens, **arguments):
    layers = []
    transformers_scores(model, tokens, layers.append, **arguments)
    return layers


def captured(model, tokens):
    """Queries and keys ``[B, H, L, D]`` of every layer, from the modules that compute them."""
    found = {}

    def keep(name, layer):
        def hook(module, given, out):
            found[layer, name] = out

        return hook

    hooks = []
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            for name in ("q_proj", "k_proj", "q_norm", "k_norm", "query_key_value"):
                part = getattr(module, name, None)
                if part is not None:
                    hooks.append(part.register_forward_hook(keep(name, module.layer_idx)))
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()

    def heads(part, width):
        return part.view(*tokens.shape, -1, width).transpose(1, 2)

    pairs = []
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        if (layer, "query_key_value") in found:
            pairs.append(heads(found[layer, "query_key_value"], 3 * width).chunk(3, -1)[:2])
            continue
        pair = []
        for name in ("q", "k"):
            plain = heads(found[layer, f"{name}_proj"], width)
            normed = found.get((layer, f"{name}_norm"))
            if normed is not None:
                # Some norms get [B, L, H, D], and others [B, H, L, D].
                plain = normed if normed.shape == plain.shape else normed.transpose(1, 2)
            pair.append(plain)
        pairs.append(pair)
    return pairs


def check(model, tokens, tolerance=1e-9):
    for scores, expected in zip(seen(model, tokens), captured(model, tokens), strict=True):
        assert scores.rotary_known
        for found, part in zip(scores.unrotated, expected, strict=True):
            torch.testing.assert_close(found, part, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", [*FAMILIES, "glm", "phi"])
def test_every_family(family):
    model, tokens = model_of(family), some_tokens(2, LENGTH)
    check(model, tokens)
    for scores in seen(model, tokens):
        assert not torch.allclose(scores.query, scores.unrotated[0], atol=1e-3)


def test_layers_without_rotary_keep_their_queries():
    """Cohere rotates in float32; the second layer of Cohere 2 gets an embedding and ignores it."""
    tokens = some_tokens(2, LENGTH)
    check(model_of("cohere"), tokens, tolerance=1e-6)
    model = model_of("cohere2")
    check(model, tokens, tolerance=1e-6)
    rotated, plain = seen(model, tokens)
    assert not torch.allclose(rotated.query, rotated.unrotated[0], atol=1e-3)
    assert torch.equal(plain.query, plain.unrotated[0])


def test_yarn_includes_its_factor_in_the_rotary():
    model, tokens = tiny("llama", rope_parameters=YARN).double(), some_tokens(2, LENGTH)
    check(model, tokens)
    (first, _) = seen(model, tokens)
    longer = first.query.norm(dim=-1) / first.unrotated[0].norm(dim=-1)
    assert longer.min() > 1.1


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-neox"])
@pytest.mark.parametrize("scheme", ["scale-invariant-p-rope", "p-rope", "nope"])
def test_converted_models(family, scheme):
    model, tokens = model_of(family), some_tokens(2, LENGTH)
    huggingface.convert(model, scheme)
    check(model, tokens)
    if scheme == "nope":
        for scores in seen(model, tokens):
            assert torch.equal(scores.query, scores.unrotated[0])


def test_query_factors_are_included_before_and_after_rotary():
    """The factors of LogN; rotation keeps the norm of a query."""
    model, tokens = model_of("llama"), some_tokens(2, LENGTH)
    huggingface.convert(model, "logn-rope")
    for scores, (query, key) in zip(seen(model, tokens), captured(model, tokens), strict=True):
        found, same = scores.unrotated
        torch.testing.assert_close(same, key, rtol=1e-9, atol=1e-9)
        factor = scores.query.norm(dim=-1, keepdim=True) / query.norm(dim=-1, keepdim=True)
        assert (factor - 1).abs().max() > 0.1
        torch.testing.assert_close(found, query * factor, rtol=1e-6, atol=1e-6)


def test_statistics_before_rotary_use_unrotated_scores():
    model, tokens = tiny("llama"), some_tokens(2, LENGTH)
    (measured,) = attention_by_length(partial(transformers_scores, model), tokens, (LENGTH,))
    for scores, layer in zip(seen(model, tokens), measured.layers, strict=True):
        expected = score_statistics(scores.before_rotary)
        torch.testing.assert_close(layer.unrotated_scores.variance, expected.variance)
        assert not torch.allclose(layer.scores.variance, expected.variance, rtol=1e-3)


def test_an_unknown_form_of_rotary_is_reported_as_unknown(monkeypatch):
    """Only the statistics before rotary are missing."""
    model, tokens = tiny("llama"), some_tokens(2, LENGTH)
    known = seen(model, tokens)
    monkeypatch.setattr(
        "scale_invariant_attention.huggingface._scores._at_position_zero", lambda _: None
    )
    unknown = seen(model, tokens)
    assert all(torch.equal(a.query, b.query) for a, b in zip(known, unknown, strict=True))
    with pytest.raises(NotImplementedError, match="layer 0 before rotary are unknown"):
        _ = unknown[0].before_rotary
    (measured,) = attention_by_length(partial(transformers_scores, model), tokens, (LENGTH,))
    assert measured.layers[0].scores.pairs > 0
    assert measured.layers[0].unrotated_scores is None
    assert measured.to_dict()["layers"][0]["unrotated_scores"] is None


def test_the_model_is_left_unchanged():
    model, tokens = tiny("llama"), some_tokens(2, LENGTH)
    with torch.no_grad():
        before = model(tokens).logits
        seen(model, tokens)
        assert torch.equal(model(tokens).logits, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
