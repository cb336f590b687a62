"""The op inside torch's machinery: compile, fake tensors, opcheck, autocast, checkpointing."""

import pytest
import torch
from backend_names import CPU, WHOLE
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.attention.contract import checked_call

BACKENDS = WHOLE
LENGTH = 70

SETTINGS = {
    "default": {},
    "not causal": {"is_causal": False},
    "window and sinks": {"window": 9, "sinks": 2},
    "positions": {
        "query_positions": torch.arange(LENGTH) * 3,
        "key_positions": torch.arange(LENGTH) * 3,
    },
    "documents and mask": {
        "key_documents": torch.arange(LENGTH) // 20,
        "key_mask": torch.arange(LENGTH).expand(2, LENGTH) > 5,
    },
    "coordinates": {
        "is_causal": False,
        "key_coordinates": torch.stack([torch.arange(LENGTH) // 7, torch.arange(LENGTH) % 7], -1),
        "window": 4,
    },
}


def leaves(dtype=torch.float32, requires_grad=True):
    torch.manual_seed(0)
    shapes = ((2, 4, LENGTH, 12), (2, 2, LENGTH, 12), (2, 2, LENGTH, 20))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_compile_without_graph_breaks(backend, settings):
    inputs = leaves()
    tau = torch.tensor([1.0, 3.0, 10.0, 30.0], requires_grad=True)

    def step(query, key, value, tau):
        out, lse = sia.scale_invariant_attention(
            query, key, value, tau=tau, return_lse=True, backend=backend, **settings
        )
        return out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(step(*inputs, tau), (*inputs, tau))
    found = torch.autograd.grad(compiled(*inputs, tau), (*inputs, tau))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_compile_with_inductor_and_learned_tables():
    inputs = leaves()
    gain = torch.ones(4, LENGTH, requires_grad=True)
    bias = torch.zeros(LENGTH, requires_grad=True)

    @torch.compile(fullgraph=True)
    def step(query, key, value, gain, bias):
        affine = sia.DistanceAffine(gain * 2, bias - 1)
        return sia.distance_affine_attention(query, key, value, affine).square().sum()

    found = torch.autograd.grad(step(*inputs, gain, bias), (*inputs, gain, bias))
    affine = sia.DistanceAffine(gain * 2, bias - 1)
    out = sia.distance_affine_attention(*inputs, affine).square().sum()
    expected = torch.autograd.grad(out, (*inputs, gain, bias))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_compile_with_dynamic_lengths_compiles_once():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def attend(query, key, value):
        return sia.scale_invariant_attention(query, key, value)

    for length in (33, 70, 111):
        query = torch.randn(2, 4, length, 12)
        torch.testing.assert_close(
            attend(query, query, query), sia.scale_invariant_attention(query, query, query)
        )
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_fake_tensors_have_the_shapes_of_real_ones(backend, settings):
    real = sia.scale_invariant_attention(
        *leaves(torch.bfloat16), return_lse=True, backend=backend, **settings
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = sia.scale_invariant_attention(
            *(torch.empty(t.shape, dtype=t.dtype) for t in leaves(torch.bfloat16)),
            tau=torch.ones(4),
            return_lse=True,
            backend=backend,
            **settings,
        )
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_meta_tensors():
    query = torch.empty(2, 4, LENGTH, 12, device="meta")
    out = sia.scale_invariant_attention(query, query, query)
    assert (out.shape, out.device.type) == (query.shape, "meta")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("affine", ["tau", "tables"])
@pytest.mark.parametrize("backend", ["tiled", CPU])
def test_opcheck(backend, settings, affine):
    inputs = leaves(torch.float64 if backend == "tiled" else torch.float32)
    if affine == "tau":
        tau = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
        call = checked_call(*inputs, affine=None, tau=tau, visibility=Visibility(**settings))
    else:
        length = 3 * LENGTH
        tables = sia.DistanceAffine(
            torch.rand(4, length, dtype=torch.float64, requires_grad=True),
            torch.rand(length, dtype=torch.float64, requires_grad=True),
        )
        call = checked_call(*inputs, affine=tables, tau=None, visibility=Visibility(**settings))
    arguments = tuple(
        t.detach().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in call.arguments()
    )
    operator = getattr(torch.ops.scale_invariant_attention, backend).default
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_narrows_inputs_and_accumulates_wide(backend, dtype):
    query, key, value = leaves()
    with torch.autocast("cpu", dtype=dtype):
        out, lse = sia.scale_invariant_attention(
            query, key, value.to(dtype), return_lse=True, backend=backend
        )
        loss = out.float().square().sum()
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    narrow = [t.detach().to(dtype).requires_grad_() for t in (query, key, value)]
    expected = sia.scale_invariant_attention(*narrow, backend=backend)
    assert torch.equal(out, expected)
    grads = torch.autograd.grad(loss, (query, key, value))
    expected_grads = torch.autograd.grad(expected.float().square().sum(), narrow)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        torch.testing.assert_close(grad, expected_grad.float())


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_autocast_leaves_float64_alone(backend):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sia.scale_invariant_attention(*leaves(torch.float64), backend=backend)
    assert out.dtype == torch.float64


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(backend, use_reentrant):
    inputs = leaves()

    def attend(query, key, value):
        return sia.scale_invariant_attention(query, key, value, backend=backend)

    expected = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    out = checkpoint(attend, *inputs, use_reentrant=use_reentrant)
    for tensor in inputs:
        tensor.grad = None
    out.square().sum().backward()
    for tensor, grad in zip(inputs, expected, strict=True):
        assert torch.equal(tensor.grad, grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_do_not_matter(backend):
    query, key, value = (t.detach() for t in leaves())
    expected = sia.scale_invariant_attention(query, key, value, backend=backend)
    sequence_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value)]
    reversed_strides = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (query, key, value)]
    for inputs in (sequence_first, reversed_strides):
        inputs = [t.requires_grad_() for t in inputs]
        out = sia.scale_invariant_attention(*inputs, backend=backend)
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
        torch.autograd.grad(out.sum(), inputs)
    one = torch.randn(1, 1, LENGTH, 12).expand(2, 4, LENGTH, 12).requires_grad_()
    out = sia.scale_invariant_attention(one, one, one, backend=backend)
    (grad,) = torch.autograd.grad(out.sum(), one)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_what_is_asked_for_gets_a_gradient(backend):
    query, key, value = leaves(requires_grad=False)
    value.requires_grad_()
    out = sia.scale_invariant_attention(query, key, value, backend=backend)
    (grad,) = torch.autograd.grad(out.sum(), value)
    assert grad.shape == value.shape
    with torch.no_grad():
        out = sia.scale_invariant_attention(query, key, value, backend=backend)
    assert not out.requires_grad


def test_tau_learns():
    """Gradient descent on tau finds the tau that made the targets."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 200, 16).unbind()
    target = sia.scale_invariant_attention(query, key, value, tau=torch.tensor([2.0, 40.0]))
    log_tau = torch.full((2,), 10.0).log().requires_grad_()
    optimiser = torch.optim.Adam([log_tau], lr=0.1)
    for _ in range(150):
        out = sia.scale_invariant_attention(query, key, value, tau=log_tau.exp())
        loss = (out - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(log_tau.exp().detach(), torch.tensor([2.0, 40.0]), rtol=0.05, atol=0)


@pytest.mark.parametrize("backend", ["tiled", CPU])
def test_gradients_have_the_layout_of_their_inputs(backend):
    """As the compiler believes: models hand over [B, L, H, D] transposed."""
    inputs = [torch.randn(2, 17, 4, 8).transpose(1, 2).requires_grad_() for _ in range(3)]
    out = sia.scale_invariant_attention(*inputs, backend=backend)
    for tensor, grad in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
        assert grad.stride() == torch.empty_like(tensor).stride()

    def step(*inputs):
        return sia.scale_invariant_attention(*inputs, backend=backend).square().sum()

    found = torch.autograd.grad(torch.compile(step, fullgraph=True)(*inputs), inputs)
    expected = torch.autograd.grad(step(*inputs), inputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
