"""The trained length: what it must be, and how far beyond it a context goes."""

import pytest
import torch

from scale_invariant_attention.schemes import NTK, LogN, YaRN, YaRNTemperature
from scale_invariant_attention.schemes.positions import known_train_length, stretch_beyond

DESCRIPTIONS = [NTK, YaRN, LogN, YaRNTemperature]


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
def test_a_trained_length_below_1_is_refused(description, wrong):
    with pytest.raises(ValueError, match=f"train_length .* got {wrong}"):
        description(train_length=wrong)


@pytest.mark.parametrize("description", DESCRIPTIONS)
@pytest.mark.parametrize("wrong", [4096.0, "4096", True, float("nan"), [4096]])
def test_a_trained_length_that_is_no_integer_is_refused(description, wrong):
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
def test_without_a_trained_length_the_remedy_is_named(use):
    with pytest.raises(ValueError, match=r"train_length is not set.*pass train_length=\.\.\."):
        use()
