"""Memory of the tiled backend at 16k, measured in a child process."""

import sys

import pytest

from scale_invariant_attention.benchmark.peak_memory import peak_memory
from scale_invariant_attention.benchmark.problem import Problem

MIB = 2**20


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")


@ON_LINUX
def test_sixteen_thousand_tokens_of_one_head(monkeypatch):
    """One score matrix alone would be 1 GiB; a sixth of the heads, and less than half the room."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peak = peak_memory("tiled", Problem.named("1x128", "16384", "forward+backward"))
    assert peak <= 128 * MIB


@ON_LINUX
@pytest.mark.slow
def test_sixteen_thousand_tokens_need_little_beyond_inputs_outputs_and_gradients(monkeypatch):
    """One score matrix alone would be 6 GiB."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peak = peak_memory("tiled", Problem.named("6x128", "16384", "forward+backward"))
    assert peak <= 256 * MIB
