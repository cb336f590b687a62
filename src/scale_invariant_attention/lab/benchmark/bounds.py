"""What the machine can do at best, measured on the spot: arithmetic and reading memory."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...attention import machine_limits
from .timing import seconds_of

MATMUL_SIZE = 2048
MATMUL_RUNS = 20
SUM_BYTES = 2**28
SUM_RUNS = 10


class Bounds(NamedTuple):
    """The peaks, and how each was found."""

    peak_gflops: float
    peak_source: str
    read_gigabytes_per_second: float
    read_source: str

    @classmethod
    def measured(cls) -> "Bounds":
        """Those of this machine with torch's number of threads.

        Each is the faster of a compiled loop, where the kernels are built, and of torch: a rate that
        something exceeds is no bound, and shares of it would flatter.
        """
        gflops = machine_limits.fma_gflops()
        bandwidth = machine_limits.read_gigabytes_per_second()
        return cls(
            *max((gflops or 0.0, "multiply-adds in a compiled loop"), _of_matmul()),
            *max((bandwidth or 0.0, "reads in a compiled loop"), _of_sum()),
        )

    @classmethod
    def recorded(cls, origin: dict[str, str]) -> "Bounds":
        """Those that :meth:`record` has put among the provenance."""
        return cls(
            float(origin["peak_gflops"]),
            origin["peak_source"],
            float(origin["read_gigabytes_per_second"]),
            origin["read_source"],
        )

    def record(self) -> dict[str, str]:
        """As provenance."""
        return {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }

    def __str__(self) -> str:
        return (
            f"{self.peak_gflops:.0f} GFLOP/s ({self.peak_source}), "
            f"{self.read_gigabytes_per_second:.1f} GB/s ({self.read_source})"
        )


def _of_matmul() -> tuple[float, str]:
    left, right = torch.randn(2, MATMUL_SIZE, MATMUL_SIZE).unbind()
    out = torch.empty_like(left)
    best = _best(lambda: torch.mm(left, right, out=out), MATMUL_RUNS)
    source = f"the best of {MATMUL_RUNS} float32 matmuls of {MATMUL_SIZE} cubed"
    return 2 * MATMUL_SIZE**3 / best / 1e9, source


def _of_sum() -> tuple[float, str]:
    tensor = torch.ones(SUM_BYTES // 4)
    source = f"the best of {SUM_RUNS} sums over {SUM_BYTES // 2**20} MiB"
    return SUM_BYTES / _best(tensor.sum, SUM_RUNS) / 1e9, source


def _best(run: Callable[[], object], times: int) -> float:
    return min(seconds_of(run) for _ in range(times))
