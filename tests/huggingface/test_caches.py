"""Cached equals uncached at every step, for every kind of cache."""

import pytest
import torch
from hugging_face_models import FAMILIES, converted, left_padded, some_tokens
from transformers import DynamicCache, StaticCache

LENGTH, NEW = 17, 9


def uncached(model, ids, mask):
    """Logits of the last NEW steps, computed without a cache."""
    return model(ids, attention_mask=mask, use_cache=False).logits[:, LENGTH - 1 : -1]


def cached(model, ids, mask, cache, steps, positions=None):
    """The same logits, computed with a cache in steps of the given sizes."""
    found, start = [], 0
    for step in steps:
        end = start + step
        part = None if positions is None else positions[:, start:end]
        out = model(
            ids[:, start:end],
            attention_mask=None if mask is None else mask[:, :end],
            position_ids=part,
            past_key_values=cache,
            use_cache=True,
        )
        found.append(out.logits)
        start = end
    return torch.cat(found, dim=1)[:, LENGTH - 1 : -1]


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_cached_equals_uncached_at_every_step(family, kind):
    model = converted(family).double()
    total = LENGTH + NEW
    padded = left_padded([some_tokens(total), some_tokens(total - 6, seed=1)])
    for ids, mask in (padded, (some_tokens(2, total), None)):
        expected = uncached(model, ids, mask)
        # A prompt, single tokens, then several at once, as in assisted decoding and chunked prefill.
        for steps in ([LENGTH] + [1] * NEW, [4, 9, 4, 3, 6]):
            if kind == "dynamic":
                cache = DynamicCache(config=model.config)
            else:
                cache = StaticCache(config=model.config, max_cache_len=total + 5)
            assert_close(cached(model, ids, mask, cache, steps), expected)


@torch.no_grad()
def test_positions_that_skip_padding():
    model = converted().double()
    total = LENGTH + NEW
    ids, mask = some_tokens(2, total), torch.ones(2, total, dtype=torch.long)
    mask[0, :3] = 0
    mask[1, 6:11] = 0  # a second turn of a conversation, padded
    counted = (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)
    steps = [LENGTH] + [1] * NEW
    expected = model(ids, attention_mask=mask, position_ids=counted).logits[:, LENGTH - 1 : -1]
    got = cached(model, ids, mask, DynamicCache(config=model.config), steps, counted)
    assert_close(got, expected)
    by_index = model(ids, attention_mask=mask).logits[:, LENGTH - 1 : -1]
    assert_close(cached(model, ids, mask, DynamicCache(config=model.config), steps), by_index)
    # Row 0 agrees up to its rotation in float32, because its padding precedes all tokens.
    torch.testing.assert_close(got[0], by_index[0], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(got[1], by_index[1], atol=1e-3)


@pytest.mark.parametrize("scheme", ["alibi", "logn-p-rope", "scale-invariant-nope", "nope"])
@torch.no_grad()
def test_other_schemes_with_a_cache(scheme):
    model = converted("gemma3", scheme).double()
    ids, mask = left_padded([some_tokens(26), some_tokens(20, seed=1)])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(ids, attention_mask=mask, position_ids=positions).logits[:, LENGTH - 1 : -1]
    for cache in (
        DynamicCache(config=model.config),
        StaticCache(config=model.config, max_cache_len=30),
    ):
        got = cached(model, ids, mask, cache, [LENGTH] + [1] * NEW, positions)
        assert_close(got, expected)


@torch.no_grad()
def test_positions_that_a_cache_cannot_know_are_refused():
    model = converted()
    cache = DynamicCache(config=model.config)
    far = torch.arange(100, 105)[None]
    model(some_tokens(1, 5), position_ids=far, past_key_values=cache)
    with pytest.raises(ValueError, match="position_ids must number the tokens from 0"):
        model(some_tokens(1, 1), position_ids=far[:, -1:] + 1, past_key_values=cache)


@torch.no_grad()
def test_a_window_with_padding_between_tokens_is_refused():
    model = converted("mistral")
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, 5:8] = 0
    ids = some_tokens(1, LENGTH)
    assert model(ids, attention_mask=mask).logits.isfinite().all()
    with pytest.raises(ValueError, match="padding must not lie between tokens"):
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1))
