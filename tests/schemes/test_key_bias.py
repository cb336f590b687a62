"""The bias per key: forget gates against the paper's formula, and its sums in documents and caches."""

import math

import pytest
import torch
from torch.func import functional_call

from scale_invariant_attention import schemes
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.schemes import ForgetGate, Scheme, SchemeLayer
from scale_invariant_attention.schemes.key_bias import running_bias

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 11, 8


@pytest.fixture
def layer():
    """One layer with gates all over (0, 1), in float64."""
    torch.manual_seed(0)
    layer = SchemeLayer(schemes.get("fox"), HEADS, WIDTH).double()
    with torch.no_grad():
        layer.key_bias.weight.normal_()
        layer.key_bias.bias.normal_()
    return layer


def inputs(length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, length, WIDTH, generator=generator, dtype=torch.float64)


def test_logits_are_those_of_the_paper(layer):
    """L_ij = q_i . k_j / sqrt(d) + sum of log f over the tokens after j up to i."""
    x = inputs()
    query, key, value = torch.randn(3, BATCH, HEADS, LENGTH, 4, dtype=torch.float64).unbind()
    bias = layer.key_biases(x, Visibility())
    out = layer.attend(
        query, key, value, Visibility(), affine=layer.affine(LENGTH, query), key_bias=bias
    )
    weight, shift = layer.key_bias.weight.tolist(), layer.key_bias.bias.tolist()
    for b in range(BATCH):
        for h in range(HEADS):
            scores = x[b] @ torch.tensor(weight[h], dtype=torch.float64) + shift[h]
            gates = [1 / (1 + math.exp(-score)) for score in scores.tolist()]
            for i in range(LENGTH):
                logits = []
                for j in range(i + 1):
                    score = float(query[b, h, i] @ key[b, h, j]) / math.sqrt(4)
                    forgotten = math.fsum(math.log(gates[k]) for k in range(j + 1, i + 1))
                    logits.append(score + forgotten)
                weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
                torch.testing.assert_close(out[b, h, i], weights @ value[b, h, : i + 1])


def test_gates_start_near_a_half():
    torch.manual_seed(0)
    gates = ForgetGate().build(heads=64, width=512)
    assert gates.weight.shape == (64, 512) and not gates.bias.any()
    assert gates.weight.std().item() == pytest.approx(0.02, rel=0.02)
    layer = SchemeLayer(Scheme(key_bias=ForgetGate()), 64, 512)
    with torch.no_grad():
        layer.key_bias.bias.fill_(3.0)
    layer.reset_parameters()
    assert not layer.key_bias.bias.any()


def test_gradients(layer):
    names = [name for name, _ in layer.key_bias.named_parameters()]

    def steps(x, *values):
        return functional_call(layer.key_bias, dict(zip(names, values, strict=True)), x)

    values = [value.detach().requires_grad_() for value in layer.key_bias.parameters()]
    assert torch.autograd.gradcheck(steps, (inputs(3).requires_grad_(), *values))


@pytest.mark.parametrize("shut", [-800.0, 800.0])
def test_gates_that_are_shut_or_open_stay_finite(layer, shut):
    with torch.no_grad():
        layer.key_bias.bias.fill_(shut)
    bias = layer.key_biases(inputs(), Visibility())
    assert bias.isfinite().all()
    assert (bias.diff() >= 0).all()


def test_sums_restart_in_every_document_and_leave_out_padding():
    steps = torch.rand(1, HEADS, 9, dtype=torch.float64)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2]])
    mask = torch.tensor([[True, False, True, True, True, False, True, True, True]])
    found = running_bias(steps, mask, documents)
    for head in range(HEADS):
        for j in range(9):
            part = [k for k in range(j + 1) if documents[0, k] == documents[0, j] and mask[0, k]]
            expected = math.fsum(steps[0, head, k].item() for k in part)
            assert found[0, head, j].item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("cut", [1, 4, LENGTH - 1])
def test_sums_continue_to_the_bit(cut):
    steps = torch.rand(BATCH, HEADS, LENGTH, dtype=torch.float64)
    first = running_bias(steps[..., :cut])
    rest = running_bias(steps[..., cut:], earlier=first[..., -1:])
    assert torch.equal(torch.cat([first, rest], -1), running_bias(steps))


def test_later_tokens_change_no_bit(layer):
    x, other = inputs(), inputs()
    other[:, 6:] = 0
    biases = [layer.key_biases(it, Visibility())[..., :6] for it in (x, other)]
    assert torch.equal(*biases)


def test_a_constant_per_document_gets_no_gradient_and_needs_none():
    """Gradients of an output are those of whole sums, though each document's offset is detached."""
    steps = torch.rand(1, 1, 6, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    values = torch.rand(6, dtype=torch.float64)

    def output(bias):
        return sum(bias[0, 0, part].softmax(0) @ values[part] for part in (slice(3), slice(3, 6)))

    (found,) = torch.autograd.grad(output(running_bias(steps, documents=documents)), steps)
    (expected,) = torch.autograd.grad(output(steps.cumsum(-1)), steps)
    torch.testing.assert_close(found, expected)


def test_a_layer_needs_the_width_of_its_input():
    with pytest.raises(ValueError, match=r"width must be .* for ForgetGate\(\), got None"):
        SchemeLayer(schemes.get("fox"), HEADS)
    with pytest.raises(TypeError, match=r"key_bias must be an object with build, such as Forget"):
        Scheme(key_bias=0.5)
