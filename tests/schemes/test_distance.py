"""Gain and bias by distance: the published tables and slopes, a tau that learns, compiling."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from scale_invariant_attention.schemes import ALiBi, ScaleInvariant, Unchanged, alibi_slopes
from scale_invariant_attention.theory import ScaleInvariantTransform

# distance, gain, bias: as printed, for tau = 10.
PUBLISHED = [
    (0, 1, 0),
    (1, 1.0912, -0.1906),
    (10, 1.5448, -1.3863),
    (100, 2.4074, -4.7958),
    (1000, 3.1985, -9.2302),
    (4095, 3.6104, -12.0348),
    (16383, 3.9754, -14.8040),
    (65535, 4.3100, -17.5758),
]


def distances(length):
    return torch.arange(length, dtype=torch.float64)


def test_unchanged():
    gain, bias = Unchanged().build(heads=4)(distances(3))
    assert gain.tolist() == [1, 1, 1]
    assert bias.tolist() == [0, 0, 0]


@pytest.mark.parametrize("learn_tau", [False, True])
def test_scale_invariant_tables_are_the_published_ones(learn_tau):
    t = torch.tensor([float(row[0]) for row in PUBLISHED], dtype=torch.float64)
    tables = ScaleInvariant(learn_tau=learn_tau).build(heads=2)(t)
    for table, column in zip(tables, (1, 2), strict=True):
        assert table.dtype == torch.float64
        for row in table if learn_tau else [table]:
            expected = [published[column] for published in PUBLISHED]
            assert row.tolist() == pytest.approx(expected, abs=0.6e-4)


@pytest.mark.parametrize("tau", [0.01, 1, 10.0, 1e6])
def test_scale_invariant_tables_are_those_of_the_theory(tau):
    gain, bias = ScaleInvariant(tau).build(heads=4)(distances(5000))
    transform = ScaleInvariantTransform(tau=tau)
    torch.testing.assert_close(gain, transform.gain(distances(5000)), rtol=1e-14, atol=0)
    torch.testing.assert_close(bias, transform.bias(distances(5000)), rtol=1e-14, atol=0)
    assert gain.shape == bias.shape == (5000,)


def test_without_sparsity_the_bias_alone_gives_the_total_attention():
    """E[exp(S + bias)] of a normal score is e^(1/2) / (t/tau + 1), as Lemma 1 of the paper asks."""
    gain, bias = ScaleInvariant(without="sparsity").build(heads=1)(distances(3000))
    assert (gain == 1).all()
    for t in (0, 1, 10, 999, 2999):
        expected = math.exp(0.5) / (t / 10 + 1)
        assert math.exp(bias[t].item() + gain[t].item() ** 2 / 2) == pytest.approx(expected)


def test_a_fixed_tau_is_no_parameter():
    for description in (Unchanged(), ALiBi(), ScaleInvariant()):
        assert not list(description.build(heads=4).parameters())
        assert not description.build(heads=4).state_dict()


def test_a_learned_tau_starts_from_the_given_one_and_is_one_per_head():
    module = ScaleInvariant(tau=3.0, learn_tau=True).build(heads=4)
    ((name, parameter),) = module.named_parameters()
    assert (name, parameter.shape, parameter.requires_grad) == ("log_tau", (4,), True)
    assert parameter.exp().tolist() == pytest.approx([3.0] * 4, rel=1e-6)


def test_every_head_follows_its_own_tau():
    module = ScaleInvariant(learn_tau=True).build(heads=3).double()
    taus = [0.1, 10.0, 2500.0]
    with torch.no_grad():
        module.log_tau.copy_(torch.tensor([math.log(tau) for tau in taus], dtype=torch.float64))
    gain, bias = module(distances(100))
    assert gain.shape == bias.shape == (3, 100)
    for head, tau in enumerate(taus):
        for t in (0, 1, 50, 99):
            grown = math.log(1 + t / tau)
            assert gain[head, t].item() == pytest.approx(math.sqrt(1 + 2 * grown), rel=1e-12)
            assert bias[head, t].item() == pytest.approx(-2 * grown, rel=1e-12)


def test_the_gradient_of_tau():
    module = ScaleInvariant(learn_tau=True).build(heads=3).double()
    start = torch.tensor([-2.0, 2.3, 7.0], dtype=torch.float64, requires_grad=True)

    def tables(log_tau):
        return torch.func.functional_call(module, {"log_tau": log_tau}, (distances(40),))

    assert torch.autograd.gradcheck(tables, start)


@pytest.mark.parametrize("direction", [-1, 1])
def test_tau_stays_positive_however_it_is_pushed(direction):
    module = ScaleInvariant(learn_tau=True).build(heads=2)
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(20):
        optimiser.zero_grad()
        gain, _ = module(distances(100))
        (direction * gain.sum()).backward()
        optimiser.step()
    tau = module.log_tau.detach().double().exp()
    assert (tau > 1e3).all() if direction == 1 else ((tau > 0) & (tau < 1e-30)).all()
    for table in module(distances(100)):
        assert table.isfinite().all()


@pytest.mark.parametrize("tau", [0, -1.0, float("nan"), float("inf")])
def test_a_tau_that_is_not_positive_is_refused(tau):
    with pytest.raises(ValueError, match=f"tau must .* got {tau}"):
        ScaleInvariant(tau)


@pytest.mark.parametrize("tau", [True, "10", None, torch.tensor(10.0)])
def test_a_tau_that_is_no_number_is_refused(tau):
    with pytest.raises(TypeError, match="tau must be a real number"):
        ScaleInvariant(tau)


@pytest.mark.parametrize(("heads", "middle"), [(1, [3.0]), (2, []), (3, [3.0])])
def test_a_spread_has_equal_ratios_and_reaches_both_ends(heads, middle):
    taus = ScaleInvariant(1.0, 9.0).tau_of_heads(heads)
    assert taus == pytest.approx([1.0, *middle, 9.0] if heads > 1 else middle)


@pytest.mark.parametrize("learn_tau", [False, True])
def test_every_head_of_a_spread_has_the_tables_of_its_tau(learn_tau):
    spread = ScaleInvariant(2.0, 50.0, learn_tau=learn_tau)
    gain, bias = spread.build(heads=4)(distances(300))
    for head, tau in enumerate(spread.tau_of_heads(4)):
        expected = ScaleInvariant(tau).build(heads=1)(distances(300))
        torch.testing.assert_close((gain[head], bias[head]), expected, rtol=1e-6, atol=1e-6)


SIGMAS, MUS = (0.5, 1.0, 2.5, 9.0), (-3.0, 0.0, 0.5, 2.0)


@pytest.mark.parametrize("learn_sigma", [False, True])
def test_every_head_has_the_tables_of_its_own_sigma_and_mu(learn_sigma):
    transform = ScaleInvariant(3.0, sigma=list(SIGMAS), mu=list(MUS), learn_sigma=learn_sigma)
    gain, bias = transform.build(heads=4)(distances(300))
    for head, (sigma, mu) in enumerate(zip(SIGMAS, MUS, strict=True)):
        for t in (0, 1, 50, 299):
            growth = 2 * math.log(1 + t / 3)
            expected = math.sqrt(1 + growth / sigma**2)
            assert gain[head, t].item() == pytest.approx(expected, rel=1e-6)
            assert bias[head, t].item() == pytest.approx(
                -growth - (expected - 1) * mu, rel=1e-6, abs=1e-6
            )


def test_a_sigma_for_all_heads_needs_one_row():
    transform = ScaleInvariantTransform.for_scores(4.0, tau=3.0)
    gain, bias = ScaleInvariant(3.0, sigma=4.0).build(heads=4)(distances(300))
    torch.testing.assert_close(gain, transform.gain(distances(300)), rtol=1e-14, atol=0)
    torch.testing.assert_close(bias, transform.bias(distances(300)), rtol=1e-14, atol=0)


def test_sigma_and_tau_are_learned_as_logarithms():
    module = ScaleInvariant(3.0, sigma=2.0, learn_tau=True, learn_sigma=True).build(heads=4)
    learned = {name: parameter.exp().tolist() for name, parameter in module.named_parameters()}
    assert learned == {
        "log_tau": pytest.approx([3.0] * 4, rel=1e-6),
        "log_sigma": pytest.approx([2.0] * 4, rel=1e-6),
    }


def test_the_gradient_of_sigma():
    module = ScaleInvariant(sigma=2.0, mu=0.7, learn_sigma=True).build(heads=3).double()
    start = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64, requires_grad=True)

    def tables(log_sigma):
        return torch.func.functional_call(module, {"log_sigma": log_sigma}, (distances(40),))

    assert torch.autograd.gradcheck(tables, start)


def test_one_part_of_the_transform_can_be_left_out():
    t = distances(300)
    gain, bias = ScaleInvariant(3.0).build(heads=2)(t)
    ones, kept_bias = ScaleInvariant(3.0, without="gain").build(heads=2)(t)
    kept_gain, zeros = ScaleInvariant(3.0, without="bias").build(heads=2)(t)
    assert torch.equal(kept_gain, gain)
    assert torch.equal(kept_bias, bias)
    assert torch.equal(ones, torch.ones_like(t))
    assert torch.equal(zeros, torch.zeros_like(t))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"highest_tau": 5.0}, "highest_tau must be at least tau, which is 10.0, got 5.0"),
        ({"highest_tau": -5.0}, "highest_tau must .* got -5.0"),
        ({"tau": [1.0, 2.0], "highest_tau": 5.0}, "tau must be one number, the lowest"),
        ({"without": "both"}, "without must be 'gain', 'bias', 'sparsity' or None, got 'both'"),
        ({"sigma": 0.0}, "sigma must be greater than 0, got 0.0"),
        ({"sigma": [1.0, -1.0]}, "sigma must be greater than 0, got -1.0"),
        ({"mu": float("nan")}, "mu must be finite, got nan"),
    ],
)
def test_bad_spreads_and_parts_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ScaleInvariant(**options)


@pytest.mark.parametrize("name", ["learn_tau", "learn_sigma"])
@pytest.mark.parametrize("given", [1, "yes", None])
def test_learning_is_true_or_false(name, given):
    with pytest.raises(TypeError, match=f"{name} must be True or False, got"):
        ScaleInvariant(**{name: given})


@pytest.mark.parametrize("name", ["sigma", "mu"])
def test_as_many_values_as_heads(name):
    with pytest.raises(
        ValueError, match=f"{name} must be one number, or a list of 4, one per head"
    ):
        ScaleInvariant(**{name: [1.0, 2.0]}).build(heads=4)


def published_slopes(heads):
    """A geometric sequence whose start is its ratio, ``2^(-8/n)``; for other n recursively."""
    if heads & (heads - 1) == 0:
        ratio = math.exp(-8 / heads * math.log(2))
        slopes = [ratio]
        while len(slopes) < heads:
            slopes.append(slopes[-1] * ratio)
        return slopes
    lower = max(n for n in (1, 2, 4, 8, 16, 32, 64) if n < heads)
    return published_slopes(lower) + published_slopes(2 * lower)[::2][: heads - lower]


@pytest.mark.parametrize("heads", [*range(1, 17), 20, 32, 33])
def test_alibi_slopes_are_the_published_ones(heads):
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads
    assert slopes == pytest.approx(published_slopes(heads), rel=1e-12)


def test_alibi_slopes_of_the_papers_heads():
    assert alibi_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert alibi_slopes(8) == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]


def test_alibi_tables():
    gain, bias = ALiBi().build(heads=6)(distances(70_000))
    assert gain.tolist() == [1.0] * 70_000
    assert bias.shape == (6, 70_000)
    assert bias.dtype == torch.float64
    for head, slope in enumerate([0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]):
        assert bias[head, [0, 1, 69_999]].tolist() == [0, -slope, -slope * 69_999]
    assert not bias[:, 0].signbit().any()


@pytest.mark.parametrize("heads", [0, -1])
def test_alibi_without_heads_is_refused(heads):
    with pytest.raises(ValueError, match=f"heads must be at least 1, got {heads}"):
        ALiBi().build(heads)


@pytest.mark.parametrize("heads", [2.0, "2", True])
def test_alibi_of_a_number_of_heads_that_is_none_is_refused(heads):
    with pytest.raises(TypeError, match="heads must be an integer"):
        alibi_slopes(heads)


@pytest.mark.parametrize(
    "description",
    [
        Unchanged(),
        ALiBi(),
        ScaleInvariant(),
        ScaleInvariant(learn_tau=True),
        ScaleInvariant(sigma=[2.0] * 6, mu=[1.0] * 6, learn_sigma=True),
    ],
    ids=repr,
)
def test_one_graph_serves_all_lengths(description):
    module = description.build(heads=6)
    torch._dynamo.reset()
    graphs = CompileCounter()
    compiled = torch.compile(module, backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 6, 255, 1000):
        torch.testing.assert_close(compiled(distances(length)), module(distances(length)))
    assert graphs.frame_count == 1
