"""Models on a GPU against the same models on the CPU: loss, gradients, generation, torch.compile."""

import pytest
import torch
from tiny_models import random_tokens, tiny_model

CASES = [
    "rope",
    "alibi",
    "scale-invariant-p-rope",
    "scale-invariant-spread",
    "learned tau",
    "logn-ntk",
]
LENGTH = 150


@pytest.fixture
def pair(gpu):
    """A function from a case to the same model on the CPU and on the device."""

    def make(case):
        return tiny_model(case, torch.float32), tiny_model(case, torch.float32).to(gpu)

    return make


def loss_and_gradients(model, tokens):
    loss = model(tokens, targets=tokens)
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def assert_alike(found, expected, tolerance=1e-4):
    torch.testing.assert_close(found[0].cpu(), expected[0], rtol=tolerance, atol=0)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert (mine.cpu() - theirs).abs().max() <= 10 * tolerance * theirs.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients(gpu, pair, case):
    on_cpu, on_gpu = pair(case)
    tokens = random_tokens(2, LENGTH)
    assert_alike(loss_and_gradients(on_gpu, tokens.to(gpu)), loss_and_gradients(on_cpu, tokens))


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "learned tau"])
def test_compiled_training(gpu, pair, case):
    on_cpu, on_gpu = pair(case)
    tokens = random_tokens(2, LENGTH)
    torch.compiler.reset()
    # On CPUs, which only try this test out, without a C++ compiler.
    backend = "inductor" if gpu.type == "cuda" else "aot_eager"
    compiled = torch.compile(on_gpu, fullgraph=True, backend=backend)
    assert_alike(loss_and_gradients(compiled, tokens.to(gpu)), loss_and_gradients(on_cpu, tokens))
    torch.compiler.reset()


def cached_logits(model, prompt, following):
    """Logits after a prompt and after each of the tokens that follow it."""
    cache = model.new_cache(context_length=40)
    parts = [prompt, *following.split(1, dim=1)]
    with torch.no_grad():
        return torch.stack([model(part, cache=cache)[:, -1] for part in parts], 1)


@pytest.mark.parametrize("case", CASES)
def test_decoding_with_a_cache(gpu, pair, case):
    on_cpu, on_gpu = pair(case)
    tokens = random_tokens(2, 20), random_tokens(2, 10, seed=1)
    found = cached_logits(on_gpu, *(part.to(gpu) for part in tokens))
    torch.testing.assert_close(found.cpu(), cached_logits(on_cpu, *tokens), rtol=1e-3, atol=1e-4)


def test_bfloat16_autocast_stays_close(gpu, pair):
    on_cpu, on_gpu = pair("scale-invariant-p-rope")
    tokens = random_tokens(2, LENGTH)
    with torch.autocast(gpu.type, dtype=torch.bfloat16):
        found = loss_and_gradients(on_gpu, tokens.to(gpu))
    assert all(grad.isfinite().all() for grad in found[1])
    torch.testing.assert_close(
        found[0].float().cpu(), on_cpu(tokens, targets=tokens), rtol=0.05, atol=0
    )
