"""The oracle itself: against the definition spelled out in loops, and against finite differences."""

import math

import pytest
import torch
import torch.nn.functional as F

import scale_invariant_attention as sia


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def by_hand(query, key, value, gain, bias, visible, key_bias=None):
    """One sum at a time; gain and bias are functions of (head, distance)."""
    batch, heads, queries, size = query.shape
    group = heads // key.shape[1]
    out = torch.zeros(batch, heads, queries, value.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    start = key.shape[2] - queries
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                logits, values = [], []
                for j in range(key.shape[2]):
                    t = abs(start + i - j)
                    if visible(start + i, j):
                        score = float(query[b, h, i] @ key[b, h // group, j]) / math.sqrt(size)
                        extra = 0.0 if key_bias is None else float(key_bias[b, h // group, j])
                        logits.append(gain(h, t) * score + bias(h, t) + extra)
                        values.append(value[b, h // group, j])
                if logits:
                    lse[b, h, i] = math.log(sum(math.exp(x) for x in logits))
                    for x, v in zip(logits, values, strict=True):
                        out[b, h, i] += math.exp(x - lse[b, h, i]) * v
    return out, lse


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("queries", [7, 3, 9])
def test_scale_invariant_is_the_formula(is_causal, queries):
    query, key, value = (
        normal(2, 4, queries, 5),
        normal(2, 2, 7, 5, seed=1),
        normal(2, 2, 7, 3, seed=2),
    )
    tau = 3.0
    expected = by_hand(
        query,
        key,
        value,
        lambda h, t: math.sqrt(1 + 2 * math.log1p(t / tau)),
        lambda h, t: -2 * math.log1p(t / tau),
        lambda i, j: i >= j or not is_causal,
    )
    found = sia.scale_invariant_attention(
        query, key, value, tau=tau, is_causal=is_causal, return_lse=True, backend="reference"
    )
    torch.testing.assert_close(found, expected)


def test_a_key_bias_is_added_to_every_logit_of_the_key():
    query, key, value = normal(2, 4, 9, 5), normal(2, 2, 7, 5, seed=1), normal(2, 2, 7, 3, seed=2)
    key_bias = normal(2, 2, 7, seed=3)
    expected = by_hand(
        query, key, value, lambda h, t: 2, lambda h, t: -0.1 * t, lambda i, j: i >= j, key_bias
    )
    distance = torch.arange(9, dtype=torch.float64)
    affine = sia.DistanceAffine(2 + 0 * distance, -0.1 * distance)
    found = sia.distance_affine_attention(
        query, key, value, affine, key_bias=key_bias, return_lse=True, backend="reference"
    )
    torch.testing.assert_close(found, expected)


def test_tables_by_head_window_and_sinks_are_the_formula():
    query, key, value = normal(1, 4, 7, 5), normal(1, 2, 7, 5, seed=1), normal(1, 2, 7, 3, seed=2)
    gain, bias = normal(4, 7, seed=3), normal(7, seed=4)
    window, sinks = 3, 1
    expected, _ = by_hand(
        query,
        key,
        value,
        lambda h, t: float(gain[h, t]),
        lambda h, t: float(bias[t]),
        lambda i, j: i >= j and i - j < window,
    )
    affine = sia.DistanceAffine(gain, bias)
    found = sia.distance_affine_attention(
        query, key, value, affine, window=window, backend="reference"
    )
    torch.testing.assert_close(found, expected)

    # With every key a sink nothing is transformed and the window hides nothing.
    plain = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    found = sia.distance_affine_attention(
        query, key, value, affine, window=window, sinks=7, backend="reference"
    )
    torch.testing.assert_close(found, plain)
    # With one sink, the first key of a far query is visible at its plain score.
    found = sia.distance_affine_attention(
        query, key, value, affine, window=1, sinks=sinks, backend="reference"
    )
    score = (query[0, 3, 6] * key[0, 1]).sum(-1) / math.sqrt(5)
    near = gain[3, 0] * score[6] + bias[0]
    weights = torch.softmax(torch.stack([score[0], near]), 0)
    torch.testing.assert_close(
        found[0, 3, 6], weights[0] * value[0, 1, 0] + weights[1] * value[0, 1, 6]
    )


SETTINGS = [
    {},
    {"is_causal": False},
    {"window": 3, "sinks": 1},
    {"key_mask": torch.tensor([[True, False, True, True, True, False]])},
    {"key_documents": torch.tensor([0, 0, 1, 1, 1, 2])},
    {"query_positions": torch.tensor([5, 1, 9]), "key_positions": torch.tensor([4, 2, 8, 0, 1, 3])},
    {"scale": -0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(s) or "default")
def test_gradients_of_everything_match_finite_differences(settings):
    query, key, value = normal(1, 4, 3, 2), normal(1, 2, 6, 2, seed=1), normal(1, 2, 6, 3, seed=2)
    gain, bias = 1 + normal(4, 10, seed=3) / 5, normal(10, seed=4)

    def tables(query, key, value, gain, bias):
        out, lse = sia.distance_affine_attention(
            query,
            key,
            value,
            sia.DistanceAffine(gain, bias),
            return_lse=True,
            backend="reference",
            **settings,
        )
        return out, lse.masked_fill(lse == -math.inf, 0)

    inputs = [t.requires_grad_() for t in (query, key, value, gain, bias)]
    assert torch.autograd.gradcheck(tables, inputs)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("tau", [torch.tensor(3.0), torch.tensor([0.1, 1.0, 10.0, 100.0])], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(s) or "default")
def test_gradient_of_tau_matches_finite_differences(backend, tau, settings):
    query, key, value = normal(1, 4, 3, 2), normal(1, 2, 6, 2, seed=1), normal(1, 2, 6, 3, seed=2)

    def of_tau(tau):
        return sia.scale_invariant_attention(
            query, key, value, tau=tau, backend=backend, **settings
        )

    assert torch.autograd.gradcheck(of_tau, tau.double().requires_grad_())
