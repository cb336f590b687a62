"""The limits of a machine: peak arithmetic and bandwidth of its CPU or of a GPU."""

from typing import NamedTuple

import torch

from ...attention import cpu_library
from ...provenance import device_name
from .timing import clock_for

CPU = torch.device("cpu")
GPU_MATMUL_SIZE = 8192
GPU_SUM_BYTES = 2**31

DATA_SHEET = "the data sheet of the device"


class DataSheet(NamedTuple):
    """Dense half-precision arithmetic with float32 sums, in TFLOP/s, and bandwidth in GB/s."""

    teraflops: float
    gigabytes_per_second: float

    @property
    def gflops(self) -> float:
        """In the unit of all bounds."""
        return 1e3 * self.teraflops


# By the names that torch reports. Published figures for dense matrices; where only a figure for sparse
# ones is published, it is halved. Any other GPU is measured.
DATA_SHEETS = {
    "NVIDIA A100-PCIE-40GB": DataSheet(312, 1555),
    "NVIDIA A100-SXM4-40GB": DataSheet(312, 1555),
    "NVIDIA A100 80GB PCIe": DataSheet(312, 1935),
    "NVIDIA A100-SXM4-80GB": DataSheet(312, 2039),
    "NVIDIA H100 PCIe": DataSheet(756, 2000),
    "NVIDIA H100 80GB HBM3": DataSheet(989, 3350),
    "NVIDIA H200": DataSheet(989, 4800),
    "NVIDIA B200": DataSheet(2250, 8000),
    "NVIDIA L4": DataSheet(121, 300),
    "NVIDIA L40S": DataSheet(362, 864),
    "NVIDIA RTX A6000": DataSheet(155, 768),
    "NVIDIA GeForce RTX 4090": DataSheet(165, 1008),
    "AMD Instinct MI300X": DataSheet(1307, 5300),
}

MATMUL_SIZE = 2048
MATMUL_RUNS = 20
SUM_BYTES = 2**28
SUM_RUNS = 10


class Bounds(NamedTuple):
    """Peak arithmetic and bandwidth of a device, and the source of each."""

    peak_gflops: float
    peak_source: str
    read_gigabytes_per_second: float
    read_source: str

    @classmethod
    def measure(cls) -> "Bounds":
        """Measure this machine with torch's number of threads.

        Each peak is the faster of torch and, where the kernels are built, of a compiled loop: a rate
        that can be exceeded is no bound.
        """
        gflops = cpu_library.fma_gflops()
        bandwidth = cpu_library.read_gigabytes_per_second()
        return cls(
            *max((gflops or 0.0, "multiply-adds in a compiled loop"), _of_matmul()),
            *max((bandwidth or 0.0, "reads in a compiled loop"), _of_sum()),
        )

    @classmethod
    def of_gpu(cls, device: torch.device, dtype: torch.dtype) -> "Bounds":
        """The peaks in the data sheet of a known GPU; of an unknown one, the best that torch reaches."""
        known = DATA_SHEETS.get(device_name(device))
        if known is not None and dtype in (torch.bfloat16, torch.float16):
            return cls(known.gflops, DATA_SHEET, known.gigabytes_per_second, DATA_SHEET)
        return cls(*_of_matmul(device, dtype), *_of_sum(device))

    @classmethod
    def from_record(cls, origin: dict[str, str]) -> "Bounds":
        """The inverse of :meth:`record`."""
        return cls(
            float(origin["peak_gflops"]),
            origin["peak_source"],
            float(origin["read_gigabytes_per_second"]),
            origin["read_source"],
        )

    def record(self) -> dict[str, str]:
        """The bounds as entries of the provenance."""
        return {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }

    def __str__(self) -> str:
        return (
            f"{self.peak_gflops:.0f} GFLOP/s ({self.peak_source}), "
            f"{self.read_gigabytes_per_second:.1f} GB/s ({self.read_source})"
        )


def _of_matmul(device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> tuple[float, str]:
    size = MATMUL_SIZE if device.type == "cpu" else GPU_MATMUL_SIZE
    left, right = torch.randn(2, size, size, device=device).to(dtype).unbind()
    out, clock = torch.empty_like(left), clock_for(device)
    best = min(clock(lambda: torch.mm(left, right, out=out)) for _ in range(MATMUL_RUNS))
    name = str(dtype).removeprefix("torch.")
    return 2 * size**3 / best / 1e9, f"the best of {MATMUL_RUNS} {name} matmuls of {size} cubed"


def _of_sum(device: torch.device = CPU) -> tuple[float, str]:
    size = SUM_BYTES if device.type == "cpu" else GPU_SUM_BYTES
    tensor, clock = torch.ones(size // 4, device=device), clock_for(device)
    source = f"the best of {SUM_RUNS} sums over {size // 2**20} MiB"
    best = min(clock(tensor.sum) for _ in range(SUM_RUNS))
    return size / best / 1e9, source
