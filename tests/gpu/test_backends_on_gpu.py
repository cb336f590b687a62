"""Backends on a GPU that need no CPU tensors: self-checks, long sequences, the choice of "auto"."""

from dataclasses import replace

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention.attention._self_check_contracts import CONTRACTS, HALF, SINGLE
from scale_invariant_attention.attention.backends import BACKENDS
from scale_invariant_attention.attention.self_check import check

SECONDS = 2.0


@pytest.fixture
def installed(gpu):
    """A function that skips if a backend cannot run on the device."""

    def require(name):
        reason = BACKENDS[name].unavailable_reason(gpu)
        if reason is not None:
            pytest.skip(reason)
        return BACKENDS[name]

    return require


@pytest.mark.parametrize("name", ["triton", "tiled", "flex", "flex_flash"])
def test_every_backend_passes_the_self_check(gpu, installed, name):
    backend = installed(name)
    if name == "flex" and gpu.type == "cpu":
        pytest.skip("FlexAttention has no gradients on CPUs")
    thorough = [replace(contract, precisions=(SINGLE, HALF)) for contract in CONTRACTS]
    outcome = check(backend, gpu, thorough)
    assert outcome.passed, "\n".join(map(str, outcome.differences)) or outcome.findings
    print(f"{name}: {outcome.closest}; declined {outcome.declined}")


def test_a_second_self_check_is_quick(gpu, installed):
    """The first one compiles."""
    backend = installed("triton" if gpu.type == "cuda" else "tiled")
    check(backend, gpu)
    assert check(backend, gpu).seconds < SECONDS * (1 if gpu.type == "cuda" else 100)


def test_auto_is_triton(gpu, installed):
    if gpu.type != "cuda":
        pytest.skip("on CUDA only")
    installed("triton")
    query = torch.randn(1, 2, 40, 64, device=gpu, requires_grad=True)
    tau = torch.tensor(10.0, device=gpu, requires_grad=True)
    assert sia.backend_for(query, query, query, tau=tau) == "triton"
    assert sia.backend_for(query.double(), query.double(), query.double()) == "tiled"


def test_runs_agree_bitwise(gpu, installed):
    installed(name := "triton" if gpu.type == "cuda" else "tiled")
    generator = torch.Generator(gpu).manual_seed(0)
    size = 1000 if gpu.type == "cuda" else 100
    tensors = torch.randn(3, 2, 4, size, 64, generator=generator, device=gpu).bfloat16()
    tau = torch.tensor([1.0, 3.0, 10.0, 30.0], device=gpu)

    def results():
        leaves = [t.clone().requires_grad_() for t in (*tensors.unbind(), tau)]
        out = sia.scale_invariant_attention(*leaves[:3], tau=leaves[3], backend=name)
        return out, *torch.autograd.grad(out, leaves, torch.ones_like(out))

    first = results()
    for _ in range(20 if gpu.type == "cuda" else 2):
        assert all(torch.equal(a, b) for a, b in zip(first, results(), strict=True))


@pytest.mark.parametrize("settings", [{}, {"window": 1000}], ids=["causal", "window"])
def test_the_last_rows_of_a_long_sequence_are_those_of_few_queries(gpu, installed, settings):
    installed(name := "triton" if gpu.type == "cuda" else "tiled")
    length, rows = (32768, 33) if gpu.type == "cuda" else (1024, 33)
    generator = torch.Generator(gpu).manual_seed(0)
    shape = (1, 2, length, 64)
    query, key, value = (
        torch.randn(shape, generator=generator, device=gpu, dtype=torch.bfloat16) for _ in range(3)
    )
    whole = sia.scale_invariant_attention(query, key, value, backend=name, **settings)
    few = (query[:, :, -rows:], key, value)
    exact = sia.scale_invariant_attention(
        *(tensor.double() for tensor in few), backend="tiled", **settings
    )
    error = (whole[:, :, -rows:] - exact).abs().max()
    # Weights and results are rounded to bfloat16.
    assert error <= 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
