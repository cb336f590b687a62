import sys
from types import SimpleNamespace

import pytest

from scale_invariant_attention.benchmark import bounds
from scale_invariant_attention.benchmark.bounds import Bounds

LIMITS = "scale_invariant_attention.attention.machine_limits"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bounds, "MATMUL_SIZE", 64)
    monkeypatch.setattr(bounds, "SUM_BYTES", 2**20)


def limits(gflops, bandwidth):
    return SimpleNamespace(fma_gflops=lambda: gflops, read_gigabytes_per_second=lambda: bandwidth)


@pytest.mark.parametrize("module", [None, limits(None, None)], ids=["missing", "not built"])
def test_without_compiled_kernels_torch_shows_what_it_can(monkeypatch, module):
    monkeypatch.setitem(sys.modules, LIMITS, module)
    found = Bounds.measured()
    assert found.peak_gflops > 0
    assert found.peak_source == "the best of 20 float32 matmuls of 64 cubed"
    assert found.read_gigabytes_per_second > 0
    assert found.read_source == "the best of 10 sums over 1 MiB"


def test_the_faster_measurement_is_the_bound(monkeypatch):
    monkeypatch.setitem(sys.modules, LIMITS, limits(1e6, 1e-6))
    found = Bounds.measured()
    assert (found.peak_gflops, found.peak_source) == (1e6, "multiply-adds in a compiled loop")
    assert found.read_gigabytes_per_second > 1e-6
    assert found.read_source == "the best of 10 sums over 1 MiB"


def test_bounds_survive_being_recorded():
    found = Bounds(150.5, "a loop", 20.5, "another loop")
    assert Bounds.recorded(found.record()) == found
    assert str(found) == "150 GFLOP/s (a loop), 20.5 GB/s (another loop)"
