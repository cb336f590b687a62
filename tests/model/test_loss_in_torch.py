"""The chunked cross-entropy under torch: its memory, compilation, autocast and meta tensors."""

import weakref

import pytest
import torch
from small_losses import VOCABULARY, plain, problem, token_factors
from torch.utils._python_dispatch import TorchDispatchMode

from scale_invariant_attention.model import loss
from scale_invariant_attention.model.loss import projected_cross_entropy

PRODUCTS = (torch.ops.aten.matmul, torch.ops.aten.mm, torch.ops.aten.addmm_)


class LargeTensors(TorchDispatchMode):
    """The largest tensor that was made, and how many buffers of a chunk's size lived at once."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk, self.largest, self.most_alive, self.products = chunk, 0, 0, 0
        self.alive, self.operators = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is loss._losses_and_gradients._opoverload:
            # The operator is opaque: look into it.
            with self:
                return loss._losses_and_gradients._init_fn(*args, **(kwargs or {}))
        self.operators.add(func.overloadpacket)
        self.products += func.overloadpacket in PRODUCTS
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
                if tensor.numel() == self.chunk:
                    self.alive.append(weakref.ref(tensor))
                    alive = [t for reference in self.alive if (t := reference()) is not None]
                    buffers = {t.untyped_storage().data_ptr() for t in alive}
                    self.most_alive = max(self.most_alive, len(buffers))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_no_tensor_is_larger_than_a_chunk(reduction, dtype):
    tokens, vocabulary, width, rows = 96, 1000, 4, 8
    hidden = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    with LargeTensors(rows * vocabulary) as seen:
        found = projected_cross_entropy(
            hidden,
            weight,
            targets,
            reduction=reduction,
            chunk_elements=(rows + 1) * vocabulary - 1,
        )
        found.sum().backward()
    assert seen.largest == rows * vocabulary
    # Of narrow inputs there is also the product before, and the gradient after it is rounded.
    assert seen.most_alive == (1 if dtype == torch.float32 else 2)
    # Of the mean no product is computed twice.
    assert seen.products == tokens // rows * (3 if reduction == "mean" else 4)


def test_without_gradients_there_is_one_product_a_chunk():
    hidden, weight, targets = problem(tokens=(8,))
    with LargeTensors(VOCABULARY) as seen, torch.no_grad():
        projected_cross_entropy(hidden, weight, targets, chunk_elements=VOCABULARY)
    assert seen.products == 8
    assert torch.ops.aten.exp_ in seen.operators
    assert torch.ops.aten.scatter_add_ not in seen.operators


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compile_without_graph_breaks(reduction, backend):
    torch.compiler.reset()
    *leaves, targets = problem(torch.float32)

    def step(hidden, weight, targets):
        result = projected_cross_entropy(
            hidden * 2, weight, targets, reduction=reduction, chunk_elements=3 * VOCABULARY
        )
        return (result * token_factors(result)).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    found, expected = compiled(*leaves, targets), step(*leaves, targets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves)
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves, targets), expected.detach())
    with pytest.raises(ValueError, match=r"targets must be in 0..10.*got 31"):
        compiled(*leaves, targets.clamp(min=31))


def test_compile_serves_all_lengths_with_one_small_graph():
    torch.compiler.reset()
    nodes = []

    def count(graph, inputs):
        nodes.append(len(graph.graph.nodes))
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def step(hidden, weight, targets):
        return projected_cross_entropy(hidden, weight, targets, chunk_elements=VOCABULARY)

    for length in (33, 70, 111):
        arguments = problem(torch.float32, tokens=(2, length))
        torch.testing.assert_close(step(*arguments), plain(*arguments, "mean"), check_dtype=False)
    assert len(nodes) == 1 and nodes[0] < 50


@pytest.mark.parametrize("wanted", [(False, False), (True, False), (True, True)])
def test_the_operator_keeps_the_rules_of_torch(wanted):
    hidden, weight, targets = problem(torch.float32, tokens=(9,))
    factors = torch.rand(9)
    arguments = (hidden.detach(), weight.detach(), targets, factors, *wanted, torch.float32, 40)
    torch.library.opcheck(loss._losses_and_gradients, arguments)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_narrows_the_products_only(reduction):
    *leaves, targets = problem(torch.float32, tokens=(40,))
    with torch.autocast("cpu", torch.bfloat16):
        found = projected_cross_entropy(
            *leaves, targets, reduction=reduction, chunk_elements=9 * VOCABULARY
        )
    assert found.dtype == torch.float32
    rounded = projected_cross_entropy(
        *(leaf.bfloat16() for leaf in leaves), targets, reduction=reduction
    )
    torch.testing.assert_close(found, rounded, atol=0, rtol=0)
    assert (found != projected_cross_entropy(*leaves, targets, reduction=reduction)).any()
    grads = torch.autograd.grad(found.sum(), leaves)
    assert all(grad.dtype == torch.float32 for grad in grads)
    expected = torch.autograd.grad(plain(*leaves, targets, reduction).sum(), leaves)
    torch.testing.assert_close(grads, expected, atol=0.1, rtol=0)
    # The gradient of a wide weight is not rounded to the narrow dtype.
    assert (grads[1] != grads[1].bfloat16().float()).any()


def test_autocast_joins_dtypes_and_leaves_float64_alone():
    hidden, weight, targets = problem(torch.float32)
    wide = [t.detach().double() for t in (hidden, weight)]
    with torch.autocast("cpu", torch.bfloat16):
        assert projected_cross_entropy(hidden.bfloat16(), weight, targets).dtype == torch.float32
        found = projected_cross_entropy(*wide, targets)
    torch.testing.assert_close(found, plain(*wide, targets, "mean"), atol=1e-14, rtol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_around_backward_alone_changes_nothing(reduction):
    *leaves, targets = problem(torch.float32)
    found = projected_cross_entropy(*leaves, targets, reduction=reduction).sum()
    expected = torch.autograd.grad(found, leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(found, leaves)
    torch.testing.assert_close(grads, expected, atol=0, rtol=0)


def test_meta_tensors():
    hidden, weight, targets = (tensor.to("meta") for tensor in problem(torch.float32))
    assert projected_cross_entropy(hidden, weight, targets).shape == ()
    assert projected_cross_entropy(hidden, weight, targets, reduction="none").shape == (2, 7)
