"""FlexAttention on a GPU, which "auto" takes if Triton fails its self-check: contracts and models.

It declines some contracts, and compiles for the others one by one: there are fewer than elsewhere.
"""

from dataclasses import replace

import moved_backends
import pytest
import torch
from error_budgets import Judge, public_call, run
from random_contracts import draw
from tiny_models import random_tokens, tiny_model

from scale_invariant_attention import DistanceAffine
from scale_invariant_attention.attention.backends import BACKENDS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CONTRACTS = 24
MOST_DRAWN = 3000
# The head sizes that FlashAttention-4 has on every GPU.
FLASH_HEADS = (64, 128)


def with_fixed_affine(contract):
    """The same contract without gradients of tau and tables, which FlexAttention does not have."""
    learned, fixed = contract.learned, {}
    if "gain" in learned:
        fixed["affine"] = DistanceAffine(learned["gain"], learned["bias"])
    elif "tau" in learned:
        tau = learned["tau"]
        fixed["tau"] = tau if tau.ndim else float(tau)
    return replace(contract, learned={}, settings=contract.settings | fixed)


@pytest.fixture(params=moved_backends.PARTLY)
def backend(gpu, request):
    """A backend under test; on CPUs, where these have no gradients, the tiled one tries the test out."""
    name = request.param if gpu.type == "cuda" else "tiled"
    reason = BACKENDS[name].unavailable_reason(gpu)
    if reason is not None:
        pytest.skip(reason)
    return f"{name}{moved_backends.ON}{gpu}"


def test_random_contracts(gpu, backend):
    taken, violations = 0, []
    for seed in range(MOST_DRAWN):
        contract = with_fixed_affine(draw(seed, DTYPES, long_ones=False, coordinates=False))
        sizes = {contract.query.shape[3], contract.value.shape[3]}
        if backend.startswith("flex_flash") and (len(sizes) > 1 or not sizes <= {*FLASH_HEADS}):
            continue
        try:
            results = run(contract, public_call(backend))
        except NotImplementedError:
            continue
        taken += 1
        violations += [f"{contract}: {found}" for found in Judge(contract).violations(results)]
        if taken == CONTRACTS or (gpu.type == "cpu" and taken == 3):
            break
    assert taken > 0
    assert violations == []


@pytest.mark.parametrize("case", ["rope", "alibi", "scale-invariant-p-rope"])
def test_a_model_on_flex_agrees_with_the_cpu(gpu, case):
    name = "flex" if gpu.type == "cuda" else "tiled"
    on_cpu = tiny_model(case, torch.float32)
    on_gpu = tiny_model(case, torch.float32, backend=name).to(gpu)
    tokens = random_tokens(2, 150)
    expected = on_cpu(tokens, targets=tokens)
    found = on_gpu(tokens.to(gpu), targets=tokens.to(gpu))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=0)
    theirs = torch.autograd.grad(expected, list(on_cpu.parameters()))
    mine = torch.autograd.grad(found, list(on_gpu.parameters()))
    for right, grad in zip(theirs, mine, strict=True):
        assert (grad.cpu() - right).abs().max() <= 1e-3 * right.abs().max()
