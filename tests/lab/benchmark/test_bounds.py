import pytest
import torch

from scale_invariant_attention.lab.benchmark import bounds
from scale_invariant_attention.lab.benchmark.bounds import Bounds


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bounds, "MATMUL_SIZE", 64)
    monkeypatch.setattr(bounds, "SUM_BYTES", 2**20)


def limits(monkeypatch, gflops, bandwidth):
    monkeypatch.setattr(bounds.cpu_library, "fma_gflops", lambda: gflops)
    monkeypatch.setattr(bounds.cpu_library, "read_gigabytes_per_second", lambda: bandwidth)


def test_without_compiled_kernels_torch_shows_what_it_can(monkeypatch):
    limits(monkeypatch, None, None)
    found = Bounds.measure()
    assert found.peak_gflops > 0
    assert found.peak_source == "the best of 20 float32 matmuls of 64 cubed"
    assert found.read_gigabytes_per_second > 0
    assert found.read_source == "the best of 10 sums over 1 MiB"


def test_the_faster_measurement_is_the_bound(monkeypatch):
    limits(monkeypatch, 1e6, 1e-6)
    found = Bounds.measure()
    assert (found.peak_gflops, found.peak_source) == (1e6, "multiply-adds in a compiled loop")
    assert found.read_gigabytes_per_second > 1e-6
    assert found.read_source == "the best of 10 sums over 1 MiB"


def test_bounds_survive_being_recorded():
    found = Bounds(150.5, "a loop", 20.5, "another loop")
    assert Bounds.from_record(found.record()) == found
    assert str(found) == "150 GFLOP/s (a loop), 20.5 GB/s (another loop)"


def test_a_known_gpu_has_the_peaks_of_its_data_sheet(monkeypatch):
    monkeypatch.setattr(bounds, "device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    found = Bounds.of_gpu(torch.device("cuda"), torch.bfloat16)
    assert (found.peak_gflops, found.read_gigabytes_per_second) == (312_000, 2039)
    assert found.peak_source == found.read_source == "the data sheet of the device"


def test_an_unknown_device_is_measured_and_the_source_says_so():
    found = Bounds.of_gpu(torch.device("cpu"), torch.bfloat16)
    assert found.peak_gflops > 0
    assert found.peak_source == "the best of 20 bfloat16 matmuls of 64 cubed"
    assert found.read_source == "the best of 10 sums over 1 MiB"


def test_data_sheets_are_plausible():
    for sheet in bounds.DATA_SHEETS.values():
        # Operations that a GPU does while it reads a byte.
        assert 50 < 1e3 * sheet.teraflops / sheet.gigabytes_per_second < 500
