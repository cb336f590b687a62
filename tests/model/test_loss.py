"""The chunked cross-entropy against plain cross-entropy, and what it refuses."""

import pytest
import torch
from small_losses import VOCABULARY, plain, problem, token_factors

from scale_invariant_attention.model.loss import IGNORED, projected_cross_entropy


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


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_are_refused(reduction):
    *leaves, targets = problem()
    found = projected_cross_entropy(*leaves, targets, reduction=reduction).sum()
    with pytest.raises(NotImplementedError, match=r"no second derivative.*create_graph"):
        torch.autograd.grad(found, leaves, create_graph=True)


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
        ({"chunk_elements": 0}, ValueError, "chunk_elements must be at least 1, got 0"),
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
