"""Schemes whose training is bit-identical at the training length."""

import pytest
from tiny_training import same_weights, tiny_config, weights

from scale_invariant_attention import schemes
from scale_invariant_attention.training import train

SHARED = [name for name in schemes.names() if schemes.trained_as(name) != name]


def test_four_schemes_differ_beyond_the_trained_length_only():
    assert SHARED == ["rope-ntk", "yarn", "logn-ntk", "inkling"]


@pytest.mark.parametrize("name", SHARED)
def test_the_training_is_the_same_to_the_bit(tmp_path, name):
    for scheme in (name, schemes.trained_as(name)):
        train(tiny_config(scheme=scheme, steps=3), tmp_path / scheme, device="cpu")
    assert same_weights(weights(tmp_path / name), weights(tmp_path / schemes.trained_as(name)))


def test_others_do_not_train_alike(tmp_path):
    for scheme in ("rope", "p-rope"):
        train(tiny_config(scheme=scheme, steps=3), tmp_path / scheme, device="cpu")
    assert not same_weights(weights(tmp_path / "rope"), weights(tmp_path / "p-rope"))
