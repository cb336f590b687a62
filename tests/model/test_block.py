"""A block alone: its parts, the backends that run it, and activations computed again."""

from dataclasses import replace

import pytest
import torch
from backend_names import WHOLE, needs_kernels
from tiny_models import CASES, KINDS, TRAINED, VOCABULARY, random_tokens, tiny_model

import scale_invariant_attention as sia
from scale_invariant_attention.attention import backends
from scale_invariant_attention.model.block import MLP, rms

LENGTH = 2 * TRAINED - 3


def test_rms():
    x = torch.tensor([[3.0, 4.0], [-1e-3, 0.0], [0.0, 0.0]], dtype=torch.float64)
    expected = [[3 / 12.5**0.5, 4 / 12.5**0.5], [-(2**0.5), 0.0], [0.0, 0.0]]
    torch.testing.assert_close(rms(x), torch.tensor(expected, dtype=torch.float64))


def test_mlp_squares_what_is_positive():
    mlp = MLP(2).double()
    with torch.no_grad():
        mlp.up.weight.zero_()
        mlp.up.weight[3] = torch.tensor([1.0, 0.0])
        mlp.up.weight[5] = torch.tensor([-1.0, 0.0])
        mlp.down.weight.zero_()
        mlp.down.weight[0, 3], mlp.down.weight[1, 5] = 1.0, 10.0
    x = torch.tensor([[3.0, 7.0], [-2.0, 7.0]], dtype=torch.float64)
    assert mlp(x).tolist() == [[9.0, 0.0], [0.0, 40.0]]


class Runs:
    """Which backends ran, by name."""

    def __init__(self, monkeypatch):
        self.names = []
        for name, backend in backends.BACKENDS.items():
            watched = replace(backend, attention=self.watch(name, backend.attention))
            monkeypatch.setitem(backends.BACKENDS, name, watched)

    def watch(self, name, attention):
        def run(call, return_lse):
            self.names.append(name)
            return attention(call, return_lse)

        return run


@pytest.mark.parametrize("backend", WHOLE)
def test_the_backend_asked_for_runs_in_every_layer(backend, monkeypatch):
    runs = Runs(monkeypatch)
    model = tiny_model("scale-invariant-p-rope", torch.float32, backend=backend)
    model(random_tokens(1, 5), targets=random_tokens(1, 5)).backward()
    assert runs.names == [backend] * 2
    model.generate(random_tokens(1, 5), 3)
    assert set(runs.names) == {backend} and len(runs.names) == 8


@needs_kernels
@pytest.mark.parametrize("case", CASES)
def test_auto_takes_the_compiled_kernels(case, monkeypatch):
    """For training, packed batches, padding and generation alike."""
    runs = Runs(monkeypatch)
    model = tiny_model(case, torch.float32)
    tokens, mask = random_tokens(2, 5), torch.arange(5) >= torch.tensor([[0], [2]])
    model(tokens, targets=tokens).backward()
    model(tokens, documents=torch.tensor([0, 0, 1, 1, 1]))
    model.generate(tokens, 2, token_mask=mask)
    assert runs.names == ["cpu"] * 8


@pytest.mark.parametrize("case", KINDS)
def test_backends_agree_on_padded_documents(case):
    tokens = random_tokens(2, LENGTH)
    documents = torch.arange(LENGTH) // 15
    mask = torch.arange(LENGTH) >= torch.tensor([[0], [4]])
    results = []
    for name in ("reference", "tiled", *(n for n in sia.available_backends() if n == "cpu")):
        model = tiny_model(case, torch.float32, backend=name)
        loss = model(
            tokens,
            targets=tokens.masked_fill(~mask, -100),
            documents=documents,
            token_mask=mask,
        )
        grads = torch.autograd.grad(loss, list(model.parameters()))
        results.append(torch.cat([loss.reshape(1), *(grad.flatten() for grad in grads)]))
    for other in results[1:]:
        # All three sum in float32; a gradient goes through some hundred roundings.
        difference = (other - results[0]).abs().max()
        assert difference <= 100 * torch.finfo(torch.float32).eps * results[0].abs().max()


@pytest.mark.skipif("flex" not in sia.available_backends(), reason="no FlexAttention here")
@pytest.mark.parametrize("case", ["scale-invariant-p-rope"])
def test_flex_for_inference(case, monkeypatch):
    runs = Runs(monkeypatch)
    model = tiny_model(case, torch.float32, backend="flex")
    tokens = random_tokens(1, 40)
    with torch.no_grad():
        found = model(tokens)
        assert runs.names == ["flex"] * 2
        model.backend = "reference"
        torch.testing.assert_close(found, model(tokens), rtol=0, atol=1e-4)


def test_a_backend_that_does_not_exist_or_cannot_is_refused():
    with pytest.raises(ValueError, match=r"backend must be one of auto, .*got 'fastest'"):
        tiny_model("rope", backend="fastest")
    if "cpu" in sia.available_backends():
        with pytest.raises(NotImplementedError, match="backend 'cpu' cannot run this call"):
            tiny_model("rope", torch.float64, backend="cpu")(random_tokens(1, 3))


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "learned tau", "logn-ntk", "alibi"])
@pytest.mark.parametrize("backend", WHOLE)
def test_checkpointed_activations_give_the_same_gradients(case, backend):
    tokens, documents = random_tokens(2, LENGTH), torch.arange(LENGTH) // 8
    losses, grads, calls = [], [], []
    for checkpointed in (False, True):
        model = tiny_model(
            case, torch.float32, backend=backend, checkpoint_activations=checkpointed
        )
        count = []
        for block in model.blocks:
            block.mlp.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        loss = model(tokens, targets=tokens, documents=documents)
        loss.backward()
        losses.append(loss)
        grads.append([p.grad for p in model.parameters()])
        calls.append(len(count))
    assert calls == [2, 4]
    assert torch.equal(*losses)
    for plain, again in zip(*grads, strict=True):
        assert torch.equal(plain, again)


def test_checkpointing_keeps_one_activation_a_block():
    kept = []
    for checkpointed in (False, True):
        model = tiny_model("rope", checkpoint_activations=checkpointed)
        sizes = []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(random_tokens(2, LENGTH))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4
    # Without gradients nothing is computed twice.
    with torch.no_grad():
        assert model(random_tokens(1, 3)).shape == (1, 3, VOCABULARY)
