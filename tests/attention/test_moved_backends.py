"""Moved backends: results and gradients come back, and a wrong one on the device is seen."""

import moved_backends
import pytest
import torch
from contract_checks import failures
from random_contracts import draw

from scale_invariant_attention.attention import tiled
from scale_invariant_attention.attention.backends import BACKENDS, Backend

CPU = torch.device("cpu")


@pytest.fixture
def installed(monkeypatch):
    """Install the backends of the CPU, as --on cpu does, for one test."""
    before = dict(BACKENDS)
    moved_backends.install("cpu")
    yield moved_backends.installed()
    BACKENDS.clear()
    BACKENDS.update(before)


def test_random_contracts_run_on_them_too(installed):
    assert installed == ["tiled on cpu"]
    assert [found for seed in range(12) for found in failures(draw(seed))] == []


def test_what_is_wrong_on_the_device_is_seen(installed):
    def wrong(call, _):
        out, lse = tiled.attention(call)
        return out * 1.01, lse

    BACKENDS["tiled on cpu"] = moved_backends.moved(Backend("tiled", wrong), CPU)
    found = [found for seed in range(4) for found in failures(draw(seed))]
    assert any(failure.startswith("tiled on cpu: out: error") for failure in found)
    assert not [failure for failure in found if not failure.startswith("tiled on cpu")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ValueError, match="finds no GPU here, so nothing was tested"):
        moved_backends.install("cuda")
