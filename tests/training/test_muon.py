import copy

import pytest
import torch
from torch import nn

from scale_invariant_attention.training._muon import Muon, orthogonalised

SHAPES = [(48, 48), (64, 16), (16, 64), (1, 7), (33, 20)]


def matrices(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [nn.Parameter(draw.to(dtype)) for draw in draws]


def give_gradients(weights, step):
    generator = torch.Generator().manual_seed(1000 + step)
    for weight in weights:
        draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.grad = draw.to(weight.dtype)


def trained(optimiser_of, dtype=torch.float32, steps=4):
    weights = matrices(dtype)
    optimiser = optimiser_of(weights)
    for step in range(steps):
        give_gradients(weights, step)
        optimiser.step()
    return weights


def torchs_muon(weights):
    return torch.optim.Muon(weights, lr=0.02, weight_decay=0.0, momentum=0.95)


def in_the_precision_of_weights(monkeypatch):
    """Let torch's Muon orthogonalise without narrowing."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_torchs_muon_but_for_precision(monkeypatch, dtype):
    ours = trained(lambda weights: Muon(weights, lr=0.02), dtype)
    in_the_precision_of_weights(monkeypatch)
    theirs = trained(torchs_muon, dtype)
    for mine, other, start in zip(ours, theirs, matrices(dtype), strict=True):
        assert (other - start).abs().max() > 0.01
        torch.testing.assert_close(mine, other)


def test_it_is_close_to_torchs_muon():
    ours = trained(lambda weights: Muon(weights, lr=0.02))
    theirs = trained(torchs_muon)
    for mine, other, start in zip(ours, theirs, matrices(), strict=True):
        difference = (mine - other).norm() / (mine - start).norm()
        # Singular values in the flat of the polynomial move by several eps of bfloat16.
        assert 0 < difference < 10 * torch.finfo(torch.bfloat16).eps


def test_in_bfloat16_it_is_torchs_muon():
    ours = trained(lambda weights: Muon(weights, lr=0.02, dtype=torch.bfloat16))
    for mine, other in zip(ours, trained(torchs_muon), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_one_step_equals_the_formula():
    start, momentum, rate = torch.tensor([[3.0], [4.0]], dtype=torch.float64), 0.5, 0.1
    gradients = [torch.tensor([[1.0], [0.0]]).double(), torch.tensor([[0.0], [2.0]]).double()]
    weight = nn.Parameter(start.clone())
    optimiser = Muon([weight], lr=rate, momentum=momentum)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimiser.step()
        torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=0)

    def direction(vector):
        size = vector.norm()
        value = 1.0
        for _ in range(5):
            value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
        return vector / size * value

    buffer = 0.5 * gradients[0]
    expected = start - 0.1 * 2**0.5 * direction(0.5 * gradients[0] + 0.5 * buffer)
    buffer = 0.5 * buffer + 0.5 * gradients[1]
    expected = expected - 0.1 * 2**0.5 * direction(0.5 * gradients[1] + 0.5 * buffer)
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("shape", [(100, 100), (300, 50), (50, 300)])
def test_singular_values_are_near_one_and_vectors_stay(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    new = u.T @ orthogonalised(matrix) @ v.T
    torch.testing.assert_close(new, torch.diag(new.diag()))
    large = values > 0.01 * values.norm()
    assert (new.diag()[large] > 0.67).all()
    assert (new.diag() < 1.17).all()


def test_scale_does_not_matter_and_zero_stays():
    matrix = torch.randn(8, 5, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(orthogonalised(matrix), orthogonalised(matrix * 2.0**-15))
    assert torch.equal(orthogonalised(torch.zeros(4, 6)), torch.zeros(4, 6))


def test_it_computes_in_float32_under_autocast_and_for_half_precision():
    matrix = torch.randn(16, 16, generator=torch.Generator().manual_seed(7))
    plain = orthogonalised(matrix)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(orthogonalised(matrix), plain)
    assert orthogonalised(matrix.half()).dtype == torch.float32
    assert orthogonalised(matrix.double()).dtype == torch.float64


def test_groups_have_their_own_rate_and_weights_without_gradient_stay():
    weights = matrices()[:3]
    starts = [weight.detach().clone() for weight in weights]
    optimiser = Muon([{"params": weights[:1], "lr": 0.0}, {"params": weights[1:]}], lr=0.5)
    give_gradients(weights, 0)
    weights[2].grad = None
    optimiser.step()
    assert torch.equal(weights[0], starts[0])
    assert not torch.equal(weights[1], starts[1])
    assert torch.equal(weights[2], starts[2])
    assert weights[2] not in optimiser.state


@pytest.mark.parametrize("resumed", [Muon, torch.optim.Muon])
def test_its_state_dict_fits_torchs_muon(resumed):
    weights = matrices()
    optimiser = Muon(weights)
    give_gradients(weights, 0)
    optimiser.step()
    copies = copy.deepcopy(weights)
    other = resumed(copies, lr=0.02)
    # Torch would share the tensors of the state.
    saved = copy.deepcopy(optimiser.state_dict())
    if resumed is not Muon:
        saved = other.state_dict() | {"state": saved["state"]}
    other.load_state_dict(saved)
    for weight, copied in zip(weights, copies, strict=True):
        assert other.state[copied].keys() == optimiser.state[weight].keys()
        assert torch.equal(
            other.state[copied]["momentum_buffer"], optimiser.state[weight]["momentum_buffer"]
        )
    if resumed is Muon:
        for these, those in ((weights, optimiser), (copies, other)):
            give_gradients(these, 1)
            those.step()
        assert all(map(torch.equal, weights, copies))


def test_a_closure_is_called_with_gradients():
    weight = nn.Parameter(torch.eye(3))
    optimiser = Muon([weight])

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimiser.step(closure) == 3
    assert float(weight.detach().trace()) < 3


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3,), {}, "matrices"),
        ((3, 3, 3), {}, "matrices"),
        ((3, 3), {"lr": -1.0}, "lr must be at least 0"),
        ((3, 3), {"lr": float("nan")}, "lr"),
        ((3, 3), {"momentum": 1.0}, "momentum must be at least 0 and less than 1"),
    ],
)
def test_wrong_arguments_are_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        Muon([nn.Parameter(torch.ones(shape))], **options)
