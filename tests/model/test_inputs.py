"""Errors of a call of the model name the argument, the value and the remedy."""

import pytest
import torch
from tiny_models import assert_same, random_tokens, tiny_model

from scale_invariant_attention.model.context_parallel import ContextParallel

TOKENS = random_tokens(2, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": [[1, 2]]}, TypeError, "tokens must be an integer tensor, got list"),
        (
            {"tokens": TOKENS.float()},
            TypeError,
            "tokens must be an integer tensor, got torch.float32",
        ),
        ({"tokens": TOKENS.bool()}, TypeError, "tokens must be an integer tensor, got torch.bool"),
        ({"tokens": TOKENS[0]}, ValueError, r"tokens must be \[batch, length\].*shape \(5,\)"),
        ({"tokens": TOKENS[:, :0]}, ValueError, r"at least one token.*shape \(2, 0\)"),
        ({"tokens": TOKENS[None]}, ValueError, r"tokens must be \[batch, length\].*\(1, 2, 5\)"),
        ({"tokens": TOKENS + 50}, ValueError, "tokens must be in 0 .. 49, got"),
        ({"tokens": TOKENS * 0 + 50}, ValueError, "tokens must be in 0 .. 49, got 50"),
        ({"tokens": TOKENS * 0 - 1}, ValueError, "tokens must be in 0 .. 49, got -1"),
        (
            {"positions": TOKENS.float()},
            TypeError,
            "positions must be an integer tensor, got .*float",
        ),
        ({"positions": 3}, TypeError, "positions must be an integer tensor, got int"),
        ({"positions": TOKENS[:1]}, ValueError, r"positions must be \[5\] or \[2, 5\].*\(1, 5\)"),
        ({"positions": torch.arange(4)}, ValueError, r"positions must be \[5\] or .*shape \(4,\)"),
        (
            {"documents": TOKENS > 1},
            TypeError,
            "documents must be an integer tensor, got torch.bool",
        ),
        ({"documents": TOKENS.T}, ValueError, r"documents must be \[5\] or \[2, 5\].*\(5, 2\)"),
        ({"token_mask": TOKENS}, TypeError, "token_mask must be a bool tensor.*got torch.int64"),
        ({"token_mask": [True]}, TypeError, "token_mask must be a bool tensor.*got list"),
        ({"token_mask": TOKENS[0] > 1}, ValueError, r"token_mask must be \[2, 5\].*shape \(5,\)"),
        ({"context_length": 0}, ValueError, "context_length must be at least 1, got 0"),
        ({"context_length": 5.0}, TypeError, "context_length must be an integer, got 5.0"),
        (
            {"context_length": TOKENS[0]},
            ValueError,
            r"a number or \[2\], one per row.*shape \(5,\)",
        ),
        ({"context_length": torch.ones(2)}, TypeError, "context_length must be an integer tensor"),
        ({"context_length": torch.tensor([4, 0])}, ValueError, r"at least 1, got \[4, 0\]"),
        ({"cache": {}}, TypeError, "cache must come from new_cache.*, got dict"),
        ({"targets": TOKENS[:, 1:]}, ValueError, "targets must have the leading shape of hidden"),
        ({"targets": TOKENS + 50}, ValueError, r"targets must be in 0..49"),
        ({"targets": TOKENS, "reduction": "sum"}, ValueError, "reduction must be .*got 'sum'"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    model = tiny_model("rope-ntk")
    with pytest.raises(error, match=message):
        model(**({"tokens": TOKENS} | arguments))


def test_positions_and_documents_may_be_shared_by_the_rows():
    model = tiny_model("logn-ntk")
    positions, documents = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([4, 4, 4, 9, 9])
    shared = model(TOKENS, positions=positions, documents=documents)
    by_row = model(TOKENS, positions=positions.expand(2, 5), documents=documents.expand(2, 5))
    assert torch.equal(shared, by_row)
    assert_same(shared, model(TOKENS, documents=documents))


def test_inputs_need_not_be_contiguous_and_stay_as_they_are():
    model = tiny_model("yarn")
    tokens = random_tokens(5, 4).T[::2]
    mask = (random_tokens(5, 4, seed=1) > 10).T[::2]
    given = tokens.clone(), mask.clone()
    found = model(tokens, token_mask=mask)
    assert torch.equal(found, model(tokens.contiguous(), token_mask=mask.contiguous()))
    assert torch.equal(tokens, given[0]) and torch.equal(mask, given[1])


def test_running_sums_over_keys_are_not_shared_by_ranks():
    message = r"context_parallel must be None for schemes with a key_bias, such as 'fox'"
    with pytest.raises(NotImplementedError, match=message):
        tiny_model("fox")(TOKENS, context_parallel=ContextParallel())
