"""Tables of gain and bias by distance."""

import math

import pytest
import torch
from backend_names import WHOLE

import scale_invariant_attention as sia
from scale_invariant_attention import DistanceAffine
from scale_invariant_attention.theory.transform import (
    scale_invariant_gain_and_bias,
    scale_invariant_slopes,
)


@pytest.mark.parametrize("tau", [0.01, 1.0, 10.0, 1e4])
def test_scale_invariant_tables_are_the_transform_of_the_theory(tau):
    affine = DistanceAffine.scale_invariant(5000, tau, dtype=torch.float64)
    transform, distance = sia.theory.ScaleInvariantTransform(tau=tau), torch.arange(5000)
    torch.testing.assert_close(affine.gain, transform.gain(distance), rtol=1e-15, atol=0)
    torch.testing.assert_close(affine.bias, transform.bias(distance), rtol=1e-15, atol=0)
    single = DistanceAffine.scale_invariant(5000, tau)
    assert single.gain.dtype == torch.float32
    assert torch.equal(single.gain, affine.gain.float())


def test_tau_by_head_gives_a_row_a_head_and_gradients():
    tau = torch.tensor([1.0, 10.0], requires_grad=True)
    affine = DistanceAffine.scale_invariant(8, tau)
    assert affine.gain.shape == affine.bias.shape == (2, 8)
    (affine.gain.sum() + affine.bias.sum()).backward()
    assert tau.grad.ne(0).all()
    shared = DistanceAffine.scale_invariant(8, torch.tensor(10.0))
    assert shared.gain.shape == (8,)
    torch.testing.assert_close(shared.gain, affine.gain[1])


def test_sigma_and_mu_by_head():
    sigma, mu = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([0.0, -2.0])
    affine = DistanceAffine.scale_invariant(50, 7.0, sigma=sigma, mu=mu, dtype=torch.float64)
    growth = 2 * torch.log1p(torch.arange(50).double() / 7)
    for head, (spread, mean) in enumerate([(1.0, 0.0), (3.0, -2.0)]):
        gain = (1 + growth / spread**2).sqrt()
        torch.testing.assert_close(affine.gain[head], gain)
        torch.testing.assert_close(affine.bias[head], -growth - (gain - 1) * mean)
    affine.gain.sum().backward()
    assert sigma.grad.ne(0).all()
    without_mean = DistanceAffine.scale_invariant(50, 7.0, sigma=sigma.detach())
    assert (without_mean.gain.shape, without_mean.bias.shape) == ((2, 50), (50,))


def test_identity_and_alibi():
    affine = DistanceAffine.identity(3)
    assert affine.gain.tolist() == [1, 1, 1]
    assert affine.bias.tolist() == [0, 0, 0]
    affine = DistanceAffine.alibi(3, torch.tensor([0.5, 0.25]))
    assert affine.gain.tolist() == [1, 1, 1]
    assert affine.bias.tolist() == [[0, -0.5, -1], [0, -0.25, -0.5]]


def test_slopes_are_the_derivatives():
    distance = torch.tensor([0.0, 1.0, 30.0, 1e9], dtype=torch.float64)
    tau = torch.tensor(7.0, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(
        lambda tau: torch.stack(scale_invariant_gain_and_bias(distance, tau)), tau
    )
    torch.testing.assert_close(torch.stack(scale_invariant_slopes(distance, tau)), expected)


@pytest.mark.parametrize("backend", WHOLE)
def test_a_bias_of_minus_infinity_hides_a_distance(backend):
    """As a mask would: also where it leaves a query with nothing to see."""
    query, key, value = torch.randn(3, 1, 2, 9, 4).unbind()
    bias = torch.zeros(9)
    bias[0] = -math.inf
    affine = DistanceAffine(torch.ones(9), bias)
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    out, lse = sia.distance_affine_attention(*leaves, affine, return_lse=True, backend=backend)
    assert torch.equal(out[:, :, 0], torch.zeros(1, 2, 4))
    assert torch.equal(lse[:, :, 0], torch.full((1, 2), -math.inf))
    grads = torch.autograd.grad(out.sum() + lse[:, :, 1:].sum(), leaves)
    assert all(torch.isfinite(grad).all() for grad in grads)
    scores = (query @ key.mT / 2).masked_fill(~torch.ones(9, 9).tril(-1).bool(), -math.inf)
    expected = torch.softmax(scores, -1)[:, :, 1:] @ value
    torch.testing.assert_close(out[:, :, 1:], expected, atol=2e-6, rtol=1e-5)
