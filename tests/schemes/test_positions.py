"""Token positions, context lengths and training lengths: accepted shapes and refused values."""

import pytest
import torch

from scale_invariant_attention.schemes import NTK, LogN, TokenPositions, YaRN, YaRNTemperature
from scale_invariant_attention.schemes._positions import known_train_length, stretch_beyond

PER_TOKEN = torch.arange(4)
PER_ROW_AND_TOKEN = torch.arange(4).expand(3, 4)
DESCRIPTIONS = [NTK, YaRN, LogN, YaRNTemperature]


@pytest.mark.parametrize("positions", [PER_TOKEN, PER_ROW_AND_TOKEN, PER_TOKEN.int()])
@pytest.mark.parametrize("context_length", [4, torch.full((3, 1), 9), torch.full((3, 4), 9)])
def test_every_documented_shape_is_accepted(positions, context_length):
    tokens = TokenPositions(positions, context_length)
    assert tokens.positions is positions
    assert tokens.context_length is context_length


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


@pytest.mark.parametrize(
    ("context_length", "stretch"), [(1, 1.0), (99, 1.0), (100, 1.0), (101, 1.01), (1600, 16.0)]
)
def test_stretch(context_length, stretch):
    assert stretch_beyond(100, context_length) == stretch
    tensor = stretch_beyond(100, torch.tensor([[context_length]]))
    assert tensor.dtype == torch.float64
    assert tensor.tolist() == [[stretch]]


@pytest.mark.parametrize("description", DESCRIPTIONS)
@pytest.mark.parametrize("wrong", [0, -4])
def test_a_training_length_below_1_is_refused(description, wrong):
    with pytest.raises(ValueError, match=f"train_length .* got {wrong}"):
        description(train_length=wrong)


@pytest.mark.parametrize("description", DESCRIPTIONS)
@pytest.mark.parametrize("wrong", [4096.0, "4096", True, float("nan"), [4096]])
def test_a_training_length_that_is_no_integer_is_refused(description, wrong):
    with pytest.raises(TypeError, match="train_length must be an integer"):
        description(train_length=wrong)


@pytest.mark.parametrize(
    "use",
    [
        lambda: known_train_length(None),
        lambda: stretch_beyond(None, 10),
        lambda: NTK().frequencies(8, 10),
        lambda: YaRN().frequencies(8, 10),
        lambda: LogN().build(heads=2),
        lambda: YaRNTemperature().build(heads=2),
    ],
)
def test_without_a_training_length_the_remedy_is_named(use):
    with pytest.raises(ValueError, match=r"train_length is not set.*pass train_length=\.\.\."):
        use()
