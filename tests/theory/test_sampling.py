"""Monte-Carlo estimates: the published figures, the growth of entropy, streaming and seeds.

The published figures are themselves sample means, over a number of draws that is not given, and
several lie further from the true expectation than their rounding explains. They are read here as
means over `PUBLISHED_DRAWS` draws: the tolerance is the rounding of the printed figure plus four
standard errors, the printed mean's and our own together.
"""

import math
import re

import pytest
import torch

from scale_invariant_attention.theory import (
    ALiBi,
    Estimate,
    LogN,
    Plain,
    ScaleInvariantTransform,
    _sampling,
    range_entropy_from_logits,
    sample_range_entropy,
    sample_recent_share,
)

PUBLISHED_DRAWS = 64
LENGTHS = (1000, 4096, 16384, 65536)


def published_tolerance(estimate, rounding):
    printed_error = estimate.values.std().item() / math.sqrt(PUBLISHED_DRAWS)
    return rounding + 4 * math.hypot(printed_error, estimate.standard_error)


@pytest.mark.parametrize(
    ("ratio", "start", "transformed", "plain"),
    [
        (2, 10, 1.51, 1.93),
        (2, 100, 2.40, 4.12),
        (2, 1000, 3.00, 6.41),
        (2, 10**4, 3.54, 8.71),
        (10, 10, 2.72, 4.01),
        (10, 100, 3.40, 6.30),
        (10, 1000, 3.95, 8.61),
    ],
)
def test_published_range_entropies(ratio, start, transformed, plain):
    for schedule, printed in ((ScaleInvariantTransform(), transformed), (Plain(), plain)):
        estimate = sample_range_entropy(schedule, start, ratio * start, samples=512)
        assert abs(estimate.mean - printed) <= published_tolerance(estimate, 0.005)


@pytest.mark.parametrize(
    ("length", "printed"), list(zip(LENGTHS, (0.547, 0.417, 0.363, 0.326), strict=True))
)
def test_published_share_of_the_nearest_hundred_tokens(length, printed):
    estimate = sample_recent_share(ScaleInvariantTransform(), 100, length)
    assert abs(estimate.mean - printed) <= published_tolerance(estimate, 0.0005)


@pytest.mark.parametrize(
    ("length", "printed", "rounding"),
    list(zip(LENGTHS, (0.100, 0.024, 0.006, 0.0016), (5e-4, 5e-4, 5e-4, 5e-5), strict=True)),
)
def test_plain_share_is_exactly_proportional(length, printed, rounding):
    # Plain weights are exchangeable, so every token expects the same share.
    estimate = sample_recent_share(Plain(), 100, length)
    assert abs(estimate.mean - 100 / length) <= 4 * estimate.standard_error
    assert abs(100 / length - printed) <= published_tolerance(estimate, rounding)


@pytest.mark.parametrize(
    ("length", "printed"), list(zip(LENGTHS, (0.100, 0.021, 0.006, 0.0005), strict=True))
)
def test_logn_share_is_proportional_but_heavy_tailed(length, printed):
    # LogN weights are exchangeable too: the expectation is exactly recent / length. But with a
    # gain above 4 a single token often takes nearly all the attention. The share is then close to
    # 0 in most draws and close to 1 in a few, and a mean over tens of draws usually falls short.
    # So a printed figure need only lie inside the central 99.9% of such means.
    estimate = sample_recent_share(LogN(length), 100, length, samples=512)
    assert estimate.values.median() < 100 / length
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(512, (20_000, PUBLISHED_DRAWS), generator=generator)
    means = estimate.values[draws].mean(-1)
    low, middle, high = means.quantile(torch.tensor([0.0005, 0.5, 0.9995]).double()).tolist()
    assert low <= printed <= high
    assert low <= 100 / length <= high
    assert middle <= 1.1 * 100 / length


@pytest.mark.parametrize(("recent", "length"), [(100, 4096), (1, 50), (50, 50)])
def test_exchangeable_weights_share_in_proportion(recent, length):
    # A small gain keeps the tails light, so that the exact expectation can be tested tightly.
    estimate = sample_recent_share(LogN(length, scale=0.1), recent, length, samples=2000)
    assert abs(estimate.mean - recent / length) <= 4 * estimate.standard_error


def test_alibi_keeps_all_attention_local_however_long_the_context():
    assert sample_recent_share(ALiBi(0.25), 100, 65536, samples=16).mean > 1 - 1e-6


def test_definition_3_3_transformed_entropy_grows_like_the_root_of_the_logarithm():
    logs = torch.tensor([10.0**k for k in range(1, 6)], dtype=torch.float64).log()
    transform = ScaleInvariantTransform()
    entropies = torch.tensor(
        [sample_range_entropy(transform, 10**k, 2 * 10**k).mean for k in range(1, 6)],
        dtype=torch.float64,
    )
    assert ((entropies / logs).diff() < -0.02).all()
    # Strong sparsity would need a constant: the entropy does grow.
    assert (entropies.diff() > 0.2).all()

    def unexplained(predictor):
        return 1 - torch.corrcoef(torch.stack([predictor, entropies]))[0, 1].square().item()

    assert unexplained(logs.sqrt()) < unexplained(logs) / 2


def test_plain_entropy_grows_like_the_logarithm():
    # For n lognormal weights log Z -> log n + 1/2 and N/Z -> 1.
    for start in (1000, 10_000):
        estimate = sample_range_entropy(Plain(), start, 2 * start, samples=128)
        assert estimate.mean == pytest.approx(math.log(start) - 0.5, abs=0.02)


def test_streaming_equals_brute_force_on_the_same_draws(monkeypatch):
    transform = ScaleInvariantTransform()
    monkeypatch.setattr(_sampling, "_CHUNK", 1000)

    def replay(bounds):
        generator = torch.Generator().manual_seed(5)
        return [
            torch.cat(list(_sampling._logit_pieces(transform, bound, 16, generator)), dim=-1)
            for bound in bounds
        ]

    (logits,) = replay([(3, 500)])
    assert logits.shape == (16, 497)
    streamed = sample_range_entropy(transform, 3, 500, samples=16, seed=5)
    torch.testing.assert_close(
        streamed.values, range_entropy_from_logits(logits), rtol=1e-13, atol=0
    )

    near, far = replay([(0, 130), (130, 500)])
    share = torch.cat([near, far], dim=-1).softmax(-1)[:, :130].sum(-1)
    streamed = sample_recent_share(transform, 130, 500, samples=16, seed=5)
    torch.testing.assert_close(streamed.values, share, rtol=1e-13, atol=0)


@pytest.mark.parametrize("chunk", [2000, 64_000, 10**7])
def test_chunking_does_not_change_the_distribution(monkeypatch, chunk):
    # An independent estimate: whole softmax rows, and the entropy of a categorical distribution.
    t = torch.arange(100, 400)
    transform = ScaleInvariantTransform()
    scores = torch.randn(2000, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    logits = transform.gain(t) * scores + transform.bias(t)
    expected = Estimate(torch.distributions.Categorical(logits=logits).entropy())
    monkeypatch.setattr(_sampling, "_CHUNK", chunk)
    estimate = sample_range_entropy(transform, 100, 400, samples=2000)
    gap = math.hypot(estimate.standard_error, expected.standard_error)
    assert abs(estimate.mean - expected.mean) <= 4 * gap
    assert estimate.values.std().item() == pytest.approx(expected.values.std().item(), rel=0.1)


def test_pieces_stay_small_however_long_the_range():
    pieces = _sampling._logit_pieces(Plain(), (10**6, 10**7), 256, torch.Generator())
    assert next(pieces).numel() <= _sampling._CHUNK
    assert next(_sampling._logit_pieces(Plain(), (0, 9), 10**6, torch.Generator())).shape == (
        10**6,
        1,
    )


@pytest.mark.parametrize("estimator", [sample_range_entropy, sample_recent_share])
def test_the_seed_decides_and_the_global_generator_is_left_alone(estimator):
    state = torch.get_rng_state()
    first = estimator(Plain(), 10, 300, samples=32, seed=1)
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)
    again = estimator(Plain(), 10, 300, samples=32, seed=1)
    other = estimator(Plain(), 10, 300, samples=32, seed=2)
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)
    assert first.values.shape == (32,)


def test_estimate_mean_and_standard_error():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    estimate = Estimate(values)
    assert estimate.mean == 2.5
    assert estimate.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)


@pytest.mark.parametrize(
    ("call", "error", "shown"),
    [
        (
            lambda: sample_range_entropy(Plain(), -1, 5),
            ValueError,
            "start must be at least 0, got -1",
        ),
        (lambda: sample_range_entropy(Plain(), 5, 5), ValueError, "stop=5 and start=5"),
        (
            lambda: sample_range_entropy(Plain(), 0, 5, samples=1),
            ValueError,
            "samples must be at least 2, got 1",
        ),
        (
            lambda: sample_range_entropy(Plain(), 0, 5, seed=0.5),
            TypeError,
            "seed must be an integer",
        ),
        (
            lambda: sample_recent_share(Plain(), 0, 5),
            ValueError,
            "recent must be at least 1, got 0",
        ),
        (lambda: sample_recent_share(Plain(), 6, 5), ValueError, "recent=6 and length=5"),
        (lambda: sample_recent_share(Plain(), 1.0, 5), TypeError, "recent must be an integer"),
        (lambda: sample_recent_share(Plain(), 1, "5"), TypeError, "length must be an integer"),
    ],
)
def test_invalid_arguments(call, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        call()
