"""Attention against length: the same queries at every length, contexts as estimates, JSON."""

import json
from functools import partial

import pytest
import torch
from tiny_models import random_tokens, tiny_model

from scale_invariant_attention.analysis import (
    LayerScores,
    attention_by_length,
    by_length,
    gpt_scores,
    last_rows,
    range_profile,
)


@pytest.mark.parametrize("at_once", [1, 10**6])
def test_means_over_the_last_queries(at_once, monkeypatch):
    monkeypatch.setattr(by_length, "TOKENS_AT_ONCE", at_once)
    model, tokens = tiny_model("scale-invariant-p-rope"), random_tokens(3, 60)
    read = []
    short, long = attention_by_length(
        partial(gpt_scores, model), tokens, (20, 60), recent=15, queries=4, progress=read.append
    )
    assert (short.length, short.edges, long.edges) == (20, (0, 10, 20), (0, 10, 60))
    assert read[-1] == 3 * 80
    layers = []
    gpt_scores(model, tokens, layers.append)
    for scores, found in zip(layers, long.layers, strict=True):
        profile = range_profile(scores, (0, 10, 15, 60), last_rows(60, 4))
        torch.testing.assert_close(found.share, profile.merged((0, 10, 60)).share.mean(2))
        torch.testing.assert_close(found.entropy, profile.merged((0, 10, 60)).entropy.mean(2))
        torch.testing.assert_close(found.global_entropy, profile.global_entropy.mean(2))
        torch.testing.assert_close(found.recent_share, profile.share[..., :2].sum(-1).mean(2))
        assert found.keys[0].tolist() == [10.0, 48.5]
    shares = torch.stack([layer.share for layer in long.layers])
    for index, estimate in enumerate(long.overall("share")):
        assert estimate.mean == pytest.approx(float(shares[..., index].mean()))
        assert len(estimate.values) == 3


def test_contexts_end_alike():
    seen = []

    def source(tokens, visit):
        seen.append(tokens)
        query = torch.zeros(*tokens.shape, 4)[:, None]
        visit(LayerScores(0, query, query))

    tokens = random_tokens(2, 50)
    short, long = attention_by_length(source, tokens, (12, 50), edges=(0, 5, 30))
    assert [it[:, -12:].equal(tokens[:, -12:]) for it in seen] == [True, True]
    assert (short.edges, long.edges) == ((0, 5, 12), (0, 5, 30, 50))
    # Uniform attention of queries that see 35 to 50 tokens.
    assert long.overall("recent_share")[0].mean == pytest.approx(1.0)
    expected = torch.arange(35.0, 51).log().mean().item()
    assert long.overall("global_entropy")[0].mean == pytest.approx(expected)


def test_what_is_recorded_can_be_json():
    source = partial(gpt_scores, tiny_model("rope"))
    (found,) = attention_by_length(source, random_tokens(1, 40), (40,))
    entry = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert entry["edges"] == [0, 10, 40]
    assert entry["overall"]["recent_share"] == [{"mean": 1.0, "standard_error": None}]
    layer = entry["layers"][1]
    assert len(layer["share"]) == 3 and len(layer["share"][0]) == 2
    assert layer["scores"]["variance"] != layer["unrotated_scores"]["variance"]
    quantiles = layer["scores"]["quantiles"]
    assert [len(row) for row in quantiles] == [len(layer["scores"]["normal_quantiles"])] * 3


def test_lengths_beyond_the_contexts_are_refused():
    source = partial(gpt_scores, tiny_model("rope"))
    with pytest.raises(ValueError, match="lengths must be at most the 40 tokens of a context"):
        attention_by_length(source, random_tokens(1, 40), (10, 50))
    with pytest.raises(ValueError, match="lengths must be at least 2"):
        attention_by_length(source, random_tokens(1, 40), (1,))
