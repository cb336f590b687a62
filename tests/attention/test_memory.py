"""Memory of the tiled backend at 16k, measured in a child process."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_sixteen_thousand_tokens_need_little_beyond_inputs_outputs_and_gradients(monkeypatch):
    """One score matrix alone would be 6 GiB."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peak = import_module("peak_memory").peak_memory("tiled", 6, 16384, 128, backward=True)
    assert peak <= 256 * MIB
