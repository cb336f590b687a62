"""Draws of the next token against their exact distributions, ties and extremes."""

import math

import pytest
import torch

from scale_invariant_attention.model._generation import Sampler, keep_top_k, keep_top_p

# Distinct probabilities that are sums of powers of two: their sums are exact.
PROBABILITIES = torch.tensor([0.0625, 0.5, 0.03125, 0.25, 0.125, 0.03125])
LOGITS = PROBABILITIES.log()
DRAWS = 40_000


def assert_distribution(sampler, logits, expected):
    """Pearson's statistic below what one seed in ten thousand exceeds."""
    counts = torch.bincount(sampler(logits.expand(DRAWS, -1)), minlength=logits.shape[-1])
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    means = DRAWS * expected[possible]
    statistic = float(((counts[possible] - means).square() / means).sum())
    freedom = int(possible.sum()) - 1
    # Wilson and Hilferty: the cube root is all but normal; 3.72 deviations.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0, 1e6])
def test_temperature(temperature, shift):
    exact = PROBABILITIES.double() ** (1 / temperature)
    # Far from zero float32 logits are coarse: take what they really are.
    logits = LOGITS + shift
    if shift:
        exact = ((logits - shift).double() / temperature).exp()
    assert_distribution(Sampler(temperature=temperature, seed=1), logits, exact / exact.sum())


@pytest.mark.parametrize("top_k", [2, 3, 5, 6, 1000])
def test_top_k(top_k):
    order = PROBABILITIES.argsort(descending=True)[:top_k]
    exact = torch.zeros(6, dtype=torch.float64)
    exact[order] = PROBABILITIES[order].double()
    sampler = Sampler(temperature=1.0, top_k=top_k, seed=2)
    if top_k == 5:
        # One of the two that tie is left out: which one is open, but it stays out.
        kept = keep_top_k(LOGITS[None], 5)[0].isfinite()
        assert kept.sum() == 5 and kept[[0, 1, 3, 4]].all()
        exact = PROBABILITIES.double() * kept
    assert_distribution(sampler, LOGITS, exact / exact.sum())


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, [1]),
        (0.5, [1]),
        (0.5001, [1, 3]),
        (0.75, [1, 3]),
        (0.76, [1, 3, 4]),
        (0.9, [1, 3, 4, 0]),
        (1.0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_top_p_keeps_the_fewest_that_suffice(top_p, kept):
    found = keep_top_p(LOGITS[None], top_p)[0]
    assert found.isfinite().nonzero().flatten().tolist() == sorted(kept)
    assert torch.equal(found[kept], LOGITS[kept])
    if len(kept) > 1:
        exact = torch.zeros(6, dtype=torch.float64)
        exact[kept] = PROBABILITIES[kept].double()
        sampler = Sampler(temperature=1.0, top_p=top_p, seed=3)
        assert_distribution(sampler, LOGITS, exact / exact.sum())


def test_a_top_p_of_one_keeps_even_the_unlikeliest():
    logits = torch.tensor([[0.0, -20.0, -50.0, 0.0, -80.0]])
    assert torch.equal(keep_top_p(logits, 1.0), logits)
    many = torch.randn(1, 50_304, generator=torch.Generator().manual_seed(0))
    assert torch.equal(keep_top_p(many, 1.0), many)


@pytest.mark.parametrize("vocabulary", [1000, 50_304])
def test_top_p_of_equals_keeps_as_many_as_it_says(vocabulary):
    kept = keep_top_p(torch.zeros(1, vocabulary), 0.9).isfinite().sum()
    # Float64 sums are exact to a few of these.
    assert abs(int(kept) - math.ceil(0.9 * vocabulary)) <= 1


def test_top_p_counts_what_temperature_and_top_k_leave():
    exact = PROBABILITIES.double() ** 0.5
    top = PROBABILITIES.argsort(descending=True)[:4]
    share = exact[top] / exact[top].sum()
    # 0.37, 0.26, 0.19 ... of these four: three are needed for 0.75.
    assert share[:2].sum() < 0.75 < share[:3].sum()
    expected = torch.zeros(6, dtype=torch.float64)
    expected[top[:3]] = exact[top[:3]]
    sampler = Sampler(temperature=2.0, top_k=4, top_p=0.75, seed=4)
    assert_distribution(sampler, LOGITS, expected / expected.sum())


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-45, 1e-320, 5e-324])
def test_a_tiny_temperature_takes_the_likeliest(temperature):
    logits = torch.randn(100, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 7] += 10
    sampler = Sampler(temperature=temperature, top_p=0.9, top_k=20, seed=0)
    assert torch.equal(sampler(logits), logits.argmax(-1))
    # Those that tie stay equally likely.
    tied = torch.tensor([0.0, 3.0, 3.0, 1.0])
    assert_distribution(Sampler(temperature=temperature, seed=0), tied, [0, 0.5, 0.5, 0])


def test_greedy_takes_the_first_of_those_that_tie():
    assert Sampler()(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])).tolist() == [1, 0]
    assert Sampler(temperature=0, top_k=1, top_p=0.1)(LOGITS[None]).tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_that_cannot_be_is_never_drawn(dtype):
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0], dtype=dtype)
    for settings in ({}, {"top_k": 3}, {"top_p": 1.0}, {"top_p": 0.99}):
        sampler = Sampler(temperature=1.0, seed=5, **settings)
        assert_distribution(sampler, logits, [0, 0.5, 0, 0.5])


def test_rows_are_drawn_on_their_own():
    logits = torch.tensor([[0.0, 0.0]]).expand(DRAWS, 2)
    drawn = Sampler(temperature=1.0, seed=6)(logits).double()
    both = (drawn[::2] * drawn[1::2]).mean()
    assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / (DRAWS / 2))


def test_a_seed_gives_the_same_again_and_leaves_torchs_generator_alone():
    logits = torch.zeros(64, 50)
    state = torch.get_rng_state()
    first, second, other = (Sampler(temperature=1.0, seed=seed) for seed in (9, 9, 10))
    drawn = [first(logits), first(logits)]
    assert torch.equal(torch.stack(drawn), torch.stack([second(logits), second(logits)]))
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(other(logits), drawn[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_seed_torchs_generator_decides():
    logits, drawn = torch.zeros(64, 50), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(Sampler(temperature=1.0)(logits))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"temperature": -0.1}, ValueError, "temperature must be at least 0, got -0.1"),
        ({"temperature": math.inf}, ValueError, "temperature must be finite, got inf"),
        ({"temperature": math.nan}, ValueError, "temperature must be finite, got nan"),
        ({"temperature": "hot"}, TypeError, "temperature must be a real number, got 'hot'"),
        ({"temperature": True}, TypeError, "temperature must be a real number, got True"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 2.0}, TypeError, "top_k must be an integer, got 2.0"),
        ({"top_p": 0}, ValueError, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.01}, ValueError, "top_p must be above 0 and at most 1, got 1.01"),
        ({"top_p": "most"}, TypeError, "top_p must be a real number, got 'most'"),
        ({"seed": 1.5}, TypeError, "seed must be an integer, got 1.5"),
    ],
)
def test_wrong_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        Sampler(**settings)
