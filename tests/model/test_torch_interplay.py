"""The model under torch.compile: equal to eager, in one graph, for all lengths."""

import pytest
import torch
from tiny_models import KINDS, TRAINED, assert_same, random_tokens, tiny_model
from torch._dynamo.backends.debugging import aot_eager

LENGTH = 2 * TRAINED - 3


def assert_alike(compiled, model, tokens, **given):
    """Loss and gradients, in float32: the same operations, some of them in another order."""
    losses = [run(tokens, targets=tokens, **given) for run in (compiled, model)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    grads = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    for found, expected in zip(*grads, strict=True):
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("case", "layers"),
    [
        ("logn-ntk", 1),
        # Tracing with symbolic lengths takes many seconds a model.
        # The delta rule is compiled for each number of segments.
        *[pytest.param(it, 2, marks=pytest.mark.slow) for it in KINDS if it != "delta rule"],
    ],
)
def test_one_compilation_serves_all_lengths(case, layers):
    torch.compiler.reset()
    model = tiny_model(case, torch.float32, layers=layers)
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counting)
    counts = []
    for length in (TRAINED + 1, LENGTH, 40, 64):
        assert_alike(compiled, model, random_tokens(2, length))
        counts.append(len(graphs))
    assert counts == counts[:1] * 4


PACKED = torch.arange(LENGTH).expand(2, -1) // 7
MASK = torch.arange(LENGTH) >= torch.tensor([[0], [4]])


@pytest.mark.parametrize(
    ("case", "given"),
    [
        ("learned tau", {"documents": PACKED, "context_length": 50}),
        ("yarn", {"documents": PACKED, "token_mask": MASK}),
        ("alibi", {"token_mask": MASK}),
        ("delta rule", {"documents": PACKED}),
    ],
)
def test_compiled_without_graph_breaks(case, given):
    torch.compiler.reset()
    model = tiny_model(case, torch.float32, layers=1)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    assert_alike(compiled, model, random_tokens(2, LENGTH), **given)


def test_compiled_as_users_do_and_with_positions():
    torch.compiler.reset()
    model = tiny_model("scale-invariant-p-rope", torch.float32, layers=1)
    compiled = torch.compile(model)
    tokens, far = random_tokens(2, LENGTH), torch.arange(LENGTH) + 1000
    assert_alike(compiled, model, tokens)
    with torch.no_grad():
        expected = model(tokens, positions=far)
        # How far positions reach is looked up, for which the graph ends and another begins.
        found = torch.compile(model, backend="eager")(tokens, positions=far)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_compiled_with_checkpointed_activations():
    torch.compiler.reset()
    model = tiny_model("rope", torch.float32, layers=1, checkpoint_activations=True)
    compiled = torch.compile(model, dynamic=False, backend="aot_eager")
    assert_alike(compiled, model, random_tokens(2, LENGTH))


def test_a_compiled_model_generates_and_takes_a_cache():
    torch.compiler.reset()
    model = tiny_model("scale-invariant-p-rope", layers=1)
    compiled = torch.compile(model, dynamic=False, backend="eager")
    prompt = random_tokens(1, 5)
    assert torch.equal(compiled.generate(prompt, 5), model.generate(prompt, 5))
    cache = compiled.new_cache()
    with torch.no_grad():
        assert_same(compiled(prompt, cache=cache), model(prompt))
        found = compiled(prompt[:, :1], cache=cache)
    assert_same(found, model(torch.cat([prompt, prompt[:, :1]], 1))[:, -1:])
