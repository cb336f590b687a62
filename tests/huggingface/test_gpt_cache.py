"""Caches of transformers: cached equals uncached at every step, with and without padding."""

from copy import deepcopy

import pytest
import torch
from tiny_models import BY_CONTEXT, TRAINED, WITHOUT_MEMORY, assert_same, random_tokens
from transformers import DynamicCache, StaticCache
from transformers_gpt import left_padding, wrapped

LENGTH = TRAINED + 8


def steps(model, tokens, mask, cache, sizes, **options):
    """The logits of all tokens, from calls with the given numbers of tokens."""
    parts, start = [], 0
    for size in sizes:
        end = start + size
        with torch.no_grad():
            out = model(
                tokens[:, start:end],
                attention_mask=None if mask is None else mask[:, :end],
                past_key_values=cache,
                **options,
            )
        assert out.past_key_values is cache
        parts.append(out.logits)
        start = end
    return torch.cat(parts, 1)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *((case, "dynamic") for case in WITHOUT_MEMORY),
        *((case, "static") for case in ("learned tau", "logn-ntk", "fox")),
    ],
)
def test_cached_equals_uncached_at_every_step(case, kind):
    model, tokens = wrapped(case), random_tokens(3, LENGTH)
    for mask in (None, left_padding((LENGTH, LENGTH - 1, 16), LENGTH)):
        lengths = LENGTH if mask is None else mask.sum(1)
        options = {"context_length": lengths} if case in BY_CONTEXT else {}
        expected = model(tokens, attention_mask=mask, use_cache=False, **options).logits
        cache = (
            DynamicCache(config=model.config)
            if kind == "dynamic"
            else StaticCache(config=model.config, max_cache_len=LENGTH + 3)
        )
        found = steps(model, tokens, mask, cache, [5, 3, 1, *[1] * (LENGTH - 9)], **options)
        real = slice(None) if mask is None else mask.bool()
        assert_same(found[real], expected[real])


def test_biases_of_keys_are_not_rounded_in_a_narrow_cache():
    model, tokens = wrapped("fox", torch.bfloat16), random_tokens(2, LENGTH)
    chunks = [5, *[1] * (LENGTH - 5)]
    found = steps(model, tokens, None, DynamicCache(config=model.config), chunks)
    own = model.gpt.new_cache()
    with torch.no_grad():
        expected = [model.gpt(part, cache=own) for part in tokens.split(chunks, 1)]
    assert torch.equal(found, torch.cat(expected, 1))


@pytest.mark.parametrize("case", ["rope", "learned tau", "fox"])
def test_a_cropped_cache_can_be_continued(case):
    model, tokens = wrapped(case), random_tokens(2, LENGTH)
    cache = DynamicCache()
    steps(model, random_tokens(2, LENGTH, seed=1), None, cache, [LENGTH])
    cache.crop(-LENGTH)
    steps(model, tokens, None, cache, [LENGTH - 4])
    copy = deepcopy(cache)
    copy.crop(-3)
    for kept, start in ((cache, LENGTH - 4), (copy, LENGTH - 7)):
        out = model(tokens[:, start:], past_key_values=kept).logits
        assert_same(out, model(tokens).logits[:, start:])


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_a_text_that_outgrows_its_context_is_refused(case):
    model, tokens = wrapped(case), random_tokens(2, LENGTH)
    cache = DynamicCache()
    steps(model, tokens, None, cache, [LENGTH - 1])
    with pytest.raises(ValueError, match="outgrown the context length"):
        model(tokens[:, -1:], past_key_values=cache)
    with pytest.raises(ValueError, match="for which past_key_values was filled"):
        model(tokens[:, -1:], past_key_values=cache, context_length=LENGTH)
    # A cache filled elsewhere does not know its context length.
    other = DynamicCache()
    for layer, filled in enumerate(cache.layers):
        other.update(filled.keys, filled.values, layer)
    with pytest.raises(ValueError, match="filled elsewhere"):
        model(tokens[:, -1:], past_key_values=other)


@pytest.mark.parametrize("case", ["yarn", "rope-ntk"])
def test_up_to_the_training_length_no_context_length_is_needed(case):
    model, tokens = wrapped(case), random_tokens(2, TRAINED)
    found = steps(model, tokens, None, DynamicCache(), [5, 1, TRAINED - 6])
    assert_same(found, model(tokens).logits)


def test_positions_after_a_cache_must_count_its_tokens():
    model, tokens = wrapped("rope"), random_tokens(1, 6)
    cache = DynamicCache()
    model(tokens[:, :5], past_key_values=cache)
    with pytest.raises(ValueError, match="must count the tokens"):
        model(tokens[:, 5:], past_key_values=cache, position_ids=torch.tensor([[9]]))
    with pytest.raises(ValueError, match=r"must be \[1, 6\]"):
        model(tokens[:, 5:], past_key_values=cache, attention_mask=torch.ones(1, 1))


def test_gradients_flow_through_a_cache():
    model, tokens = wrapped("learned tau"), random_tokens(2, 9)

    def gradient(*sizes):
        model.zero_grad()
        cache, logits, start = DynamicCache(), [], 0
        for size in sizes:
            out = model(tokens[:, start : start + size], past_key_values=cache)
            logits.append(out.logits)
            start += size
        torch.cat(logits, 1).square().sum().backward()
        return model.gpt.blocks[0].attention.scheme.distance.log_tau.grad.clone()

    torch.testing.assert_close(gradient(5, 1, 3), gradient(9))
