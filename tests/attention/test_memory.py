"""Memory of the tiled backend at 16k, measured in a child process."""

import sys

import pytest

from scale_invariant_attention.lab.benchmark.peak_memory import peak_memory
from scale_invariant_attention.lab.benchmark.problem import Problem

MIB = 2**20


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_sixteen_thousand_tokens_need_little_beyond_inputs_outputs_and_gradients(monkeypatch):
    """One score matrix alone would be 6 GiB."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peak = peak_memory("tiled", Problem.named("6x128", "16384", "forward+backward"))
    assert peak <= 256 * MIB
