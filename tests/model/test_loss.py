"""The chunked cross-entropy against plain cross-entropy, its memory, and what it refuses."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from scale_invariant_attention.model import loss
from scale_invariant_attention.model.loss import IGNORED, projected_cross_entropy

VOCABULARY, WIDTH = 11, 5


def problem(dtype=torch.float64, tokens=(2, 7), ignored=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*tokens, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCABULARY, tokens, generator=generator)
    targets.view(-1)[torch.randperm(targets.numel(), generator=generator)[:ignored]] = IGNORED
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def plain(hidden, weight, targets, reduction):
    logits = hidden.flatten(0, -2) @ weight.T
    result = F.cross_entropy(logits.double(), targets.reshape(-1).long(), reduction=reduction)
    return result.reshape(targets.shape) if reduction == "none" else result


def token_factors(result):
    return torch.arange(1, 1 + result.numel(), dtype=result.dtype).view(result.shape).cos()


# One token a chunk even where a row is larger, chunks that end evenly and not, one for all.
@pytest.mark.parametrize(
    "chunk_elements", [1, VOCABULARY, 3 * VOCABULARY + 2, 7 * VOCABULARY, 2**25]
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_values_and_gradients_are_those_of_plain_cross_entropy(reduction, chunk_elements):
    *leaves, targets = problem()
    found = projected_cross_entropy(
        *leaves, targets, reduction=reduction, chunk_elements=chunk_elements
    )
    expected = plain(*leaves, targets, reduction)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * token_factors(found)).sum(), leaves),
        torch.autograd.grad((expected * token_factors(expected)).sum(), leaves),
    )


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_are_those_of_finite_differences(reduction):
    *leaves, targets = problem()

    def function(hidden, weight):
        return projected_cross_entropy(
            hidden, weight, targets, reduction=reduction, chunk_elements=3 * VOCABULARY
        )

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_inputs_give_wide_losses_and_gradients_of_their_own_dtype(dtype, reduction):
    *leaves, targets = problem(dtype, tokens=(40,))
    found = projected_cross_entropy(
        *leaves, targets, reduction=reduction, chunk_elements=3 * VOCABULARY
    )
    assert found.dtype == torch.float32
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = plain(*exact, targets, reduction)
    tolerance = {"atol": 20 * torch.finfo(dtype).eps, "rtol": 0, "check_dtype": False}
    torch.testing.assert_close(found, expected, **tolerance)
    grads = torch.autograd.grad(found.sum(), leaves)
    assert all(grad.dtype == dtype for grad in grads)
    torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), exact), **tolerance)


def test_the_gradient_of_weight_is_accumulated_in_float32():
    """In bfloat16 a sum of 4096 equal steps stops at 256."""
    hidden = torch.ones(4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(4096, dtype=torch.int64)
    losses = projected_cross_entropy(hidden, weight, targets, reduction="none", chunk_elements=2)
    losses.sum().backward()
    assert weight.grad.tolist() == [[-2048], [2048]]
    weight.grad = None
    projected_cross_entropy(hidden, weight, targets, chunk_elements=2).backward()
    assert weight.grad.tolist() == [[-0.5], [0.5]]


def test_a_mean_over_many_tokens_does_not_underflow_in_float16():
    tokens = 2**17
    hidden = torch.ones(tokens, 1, dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float16, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.int64)
    mean = projected_cross_entropy(hidden, weight, targets)
    (mean * 2**16).backward()  # as with a loss scale
    share = torch.sigmoid(torch.tensor(-2.0))
    torch.testing.assert_close(
        weight.grad.float() / 2**16, torch.tensor([[-share], [share]]), rtol=2e-3, atol=0
    )
    torch.testing.assert_close(hidden.grad.float(), (-share).expand(tokens, 1), rtol=2e-3, atol=0)


def test_a_loss_scale_beyond_float16_does_not_overflow():
    hidden = torch.ones(1, 1, dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[0.0], [-2.0]], dtype=torch.float16, requires_grad=True)
    (projected_cross_entropy(hidden, weight, torch.tensor([0])) * 2**17).backward()
    share = torch.sigmoid(torch.tensor(-2.0)) * 2**17
    torch.testing.assert_close(weight.grad[1, 0].float(), share, rtol=2e-3, atol=0)
    torch.testing.assert_close(hidden.grad[0, 0].float(), -2 * share, rtol=2e-3, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("learned", [(True, False), (False, True), (False, False)])
def test_only_what_is_wanted_gets_a_gradient(reduction, learned):
    *leaves, targets = problem()
    expected = torch.autograd.grad(plain(*leaves, targets, reduction).sum(), leaves)
    for leaf, wanted in zip(leaves, learned, strict=True):
        leaf.requires_grad_(wanted)
    found = projected_cross_entropy(*leaves, targets, reduction=reduction).sum()
    assert found.requires_grad == any(learned)
    if found.requires_grad:
        found.backward()
    for leaf, wanted, grad in zip(leaves, learned, expected, strict=True):
        if wanted:
            torch.testing.assert_close(leaf.grad, grad)
        else:
            assert leaf.grad is None


def test_gradients_add_up_in_the_leaf_and_the_graph_can_be_kept():
    *leaves, targets = problem()
    hidden, weight = leaves
    expected = torch.autograd.grad(plain(*leaves, targets, "mean"), leaves)
    found = projected_cross_entropy(*leaves, targets)
    found.backward(retain_graph=True)
    (2 * found).backward()
    projected_cross_entropy(*leaves, targets).backward()
    torch.testing.assert_close((hidden.grad / 4, weight.grad / 4), expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("tokens", [(4,), (0,), (2, 0, 3)])
def test_without_a_token_that_counts_loss_and_gradients_are_zero(reduction, tokens):
    *leaves, targets = problem(tokens=tokens, ignored=4)
    found = projected_cross_entropy(*leaves, targets, reduction=reduction)
    assert found.shape == (() if reduction == "mean" else tokens)
    assert found.sum() == 0
    for grad, leaf in zip(torch.autograd.grad(found.sum(), leaves), leaves, strict=True):
        torch.testing.assert_close(grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_single_token_without_leading_dimensions(reduction):
    hidden, weight, targets = problem(tokens=(1,), ignored=0)
    found = projected_cross_entropy(hidden[0], weight, targets[0], reduction=reduction)
    assert found.shape == ()
    torch.testing.assert_close(found, plain(hidden, weight, targets, "mean"))


def test_an_ignored_token_may_hold_nan():
    hidden, weight, targets = problem()
    with torch.no_grad():
        hidden[targets == IGNORED] = torch.nan
    losses = projected_cross_entropy(hidden, weight, targets, reduction="none")
    assert (losses[targets == IGNORED] == 0).all()
    (grad,) = torch.autograd.grad(losses.sum(), hidden)
    assert (grad[targets == IGNORED] == 0).all() and torch.isfinite(grad).all()


def test_large_logits_do_not_overflow():
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    targets = torch.tensor([0, 0])
    losses = projected_cross_entropy(hidden, weight, targets, reduction="none")
    assert losses.tolist() == [0, 2e4]
    losses.sum().backward()
    assert hidden.grad.tolist() == [[0], [-2]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_targets_of_any_integer_dtype(dtype):
    hidden, weight, targets = problem(ignored=0)
    torch.testing.assert_close(
        projected_cross_entropy(hidden, weight, targets.to(dtype)),
        plain(hidden, weight, targets, "mean"),
    )


def test_inputs_need_not_be_contiguous():
    hidden, weight, targets = problem(tokens=(6, 6))
    found = projected_cross_entropy(
        hidden.transpose(0, 1), weight.T.contiguous().T, targets.T, reduction="none"
    )
    torch.testing.assert_close(found, plain(hidden, weight, targets, "none").T)


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


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_are_refused(reduction):
    *leaves, targets = problem()
    found = projected_cross_entropy(*leaves, targets, reduction=reduction).sum()
    with pytest.raises(NotImplementedError, match=r"no second derivative.*create_graph"):
        torch.autograd.grad(found, leaves, create_graph=True)


def test_meta_tensors():
    hidden, weight, targets = (tensor.to("meta") for tensor in problem(torch.float32))
    assert projected_cross_entropy(hidden, weight, targets).shape == ()
    assert projected_cross_entropy(hidden, weight, targets, reduction="none").shape == (2, 7)


@pytest.mark.parametrize("bad", [-1, -99, -101, VOCABULARY, 2**40])
def test_a_target_outside_the_vocabulary_is_named(bad):
    hidden, weight, targets = problem()
    targets[1, 2] = bad
    with pytest.raises(ValueError, match=rf"targets must be in 0..10.*-100.*got {bad}$"):
        projected_cross_entropy(hidden, weight, targets)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"hidden": [1.0]}, TypeError, "hidden must be a tensor, got list"),
        ({"targets": 3}, TypeError, "targets must be a tensor, got int"),
        ({"hidden": torch.ones(2, 3, 4).long()}, TypeError, "hidden must have a floating dtype"),
        ({"weight": torch.ones(6, 4).long()}, TypeError, "weight must have a floating dtype"),
        ({"weight": torch.ones(6, 4).double()}, TypeError, "weight must have the dtype of hidden"),
        ({"targets": torch.ones(2, 3)}, TypeError, "targets must have an integer dtype"),
        ({"targets": torch.ones(2, 3).bool()}, TypeError, "targets must have an integer dtype"),
        ({"hidden": torch.tensor(1.0)}, ValueError, r"hidden must be \[..., width\]"),
        ({"weight": torch.ones(6, 5)}, ValueError, r"width 4 as in hidden, got \[6, 5\]"),
        ({"weight": torch.ones(4)}, ValueError, r"weight must be .* got \[4\]"),
        ({"weight": torch.ones(0, 4)}, ValueError, r"weight must be .* got \[0, 4\]"),
        ({"targets": torch.ones(6).long()}, ValueError, r"targets .* \[2, 3\], got \[6\]"),
        ({"targets": torch.ones(2, 3, device="meta").long()}, ValueError, "targets .* device"),
        ({"reduction": "sum"}, ValueError, "reduction must be 'mean' or 'none', got 'sum'"),
        ({"chunk_elements": 0}, ValueError, "chunk_elements >= 1, got 0"),
        ({"chunk_elements": 1.5}, TypeError, "chunk_elements must be an integer"),
    ],
)
def test_wrong_arguments_are_named(changed, error, message):
    arguments = {
        "hidden": torch.ones(2, 3, 4),
        "weight": torch.ones(6, 4),
        "targets": torch.ones(2, 3, dtype=torch.int64),
    } | changed
    with pytest.raises(error, match=message):
        projected_cross_entropy(**arguments)
