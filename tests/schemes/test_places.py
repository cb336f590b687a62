"""TokenPositions: shapes that mean something, and refusals of those that would be misread."""

import pytest
import torch

from scale_invariant_attention.schemes import TokenPositions

PER_TOKEN = torch.arange(4)
PER_ROW_AND_TOKEN = torch.arange(4).expand(3, 4)


@pytest.mark.parametrize("positions", [PER_TOKEN, PER_ROW_AND_TOKEN, PER_TOKEN.int()])
@pytest.mark.parametrize("context_length", [4, torch.full((3, 1), 9), torch.full((3, 4), 9)])
def test_every_documented_shape_is_taken(positions, context_length):
    places = TokenPositions(positions, context_length)
    assert places.positions is positions
    assert places.context_length is context_length


@pytest.mark.parametrize(
    "positions",
    [torch.tensor(3), torch.zeros(1, 1, 4, dtype=torch.long), PER_TOKEN.bfloat16(), PER_TOKEN > 1],
)
def test_other_positions_are_refused(positions):
    with pytest.raises(
        ValueError, match=r"positions must be integers \[L\] or \[B, L\], got torch"
    ):
        TokenPositions(positions, 4)


@pytest.mark.parametrize(
    "context_length", [torch.tensor(4), torch.full((4,), 4), torch.full((3, 1), 4.0)]
)
def test_context_lengths_that_would_be_misread_are_refused(context_length):
    with pytest.raises(ValueError, match=r"context_length must be integers \[B, 1\] or \[B, L\]"):
        TokenPositions(PER_TOKEN, context_length)
