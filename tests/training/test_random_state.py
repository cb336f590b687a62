import json
import random

import numpy as np
import pytest
import torch

from scale_invariant_attention.training.checkpoints import (
    capture_random_state,
    restore_random_state,
)


@pytest.fixture(autouse=True)
def undisturbed():
    """Leave the generators of the test run as they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])
    random.setstate(before[2])


def draws():
    return [
        *torch.randn(5).tolist(),
        *torch.randperm(50).tolist(),
        # An odd number of Gaussians leaves one in store.
        *np.random.normal(size=3).tolist(),
        np.random.randint(2**31),
        random.gauss(0, 1),
        random.random(),
    ]


@pytest.mark.parametrize("odd", [True, False])
def test_the_same_numbers_come_again(odd):
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    if odd:
        draws()
    state = capture_random_state()
    expected = draws()
    values = json.loads(json.dumps(state.values))
    torch.manual_seed(4)
    np.random.seed(5)
    random.seed(6)
    assert draws() != expected
    restore_random_state(state.tensors, values)
    assert draws() == expected


def test_the_stored_gaussians_are_kept():
    np.random.seed(0)
    random.seed(0)
    np.random.normal()
    random.gauss(0, 1)
    state = capture_random_state()
    assert state.values["numpy"]["has_gauss"] == 1
    assert state.values["python"]["gauss"] is not None
    expected = np.random.normal(), random.gauss(0, 1)
    restore_random_state(state.tensors, state.values)
    assert (np.random.normal(), random.gauss(0, 1)) == expected


def test_a_captured_state_does_not_change_with_the_generator():
    state = capture_random_state()
    copies = {name: tensor.clone() for name, tensor in state.tensors.items()}
    values = json.dumps(state.values)
    draws()
    assert all(torch.equal(tensor, copies[name]) for name, tensor in state.tensors.items())
    assert json.dumps(state.values) == values
    assert all(tensor.dtype == torch.uint8 for tensor in state.tensors.values())


def test_gpus_that_are_not_there_are_passed_over():
    state = capture_random_state()
    expected = draws()
    restore_random_state(
        state.tensors | {"cuda.63": torch.zeros(16, dtype=torch.uint8)}, state.values
    )
    assert draws() == expected


def test_a_missing_state_is_named():
    with pytest.raises(ValueError, match="'torch'"):
        restore_random_state({}, capture_random_state().values)
