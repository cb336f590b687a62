"""Memory of the tiled backend, measured in a child process."""

import sys

import pytest

from scale_invariant_attention.benchmark.peak_memory import peak_memory
from scale_invariant_attention.benchmark.problem import Problem

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("length", [8192, pytest.param(16_384, marks=pytest.mark.slow)])
def test_long_contexts_need_little_beyond_inputs_outputs_and_gradients(length, monkeypatch):
    """One score matrix alone would be 1.5 GiB, or 6 GiB."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peak = peak_memory("tiled", Problem.named("6x128", str(length), "forward+backward"))
    assert peak <= length // 64 * MIB
