"""Timing on a noisy machine: interleaved runs, medians and quartiles, and the machine's limits."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import NamedTuple

import torch

from ...attention import cpu_library

LEAST_ROUNDS = 3


class Spread(NamedTuple):
    """Median, quartiles, and first and last decile."""

    tenth: float
    low: float
    median: float
    high: float
    ninetieth: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least two values.

        >>> Spread.of([5, 1, 2, 4, 3])
        Spread(tenth=1.4, low=2.0, median=3.0, high=4.0, ninetieth=4.6)
        """
        cuts = quantiles(values, n=20, method="inclusive")
        return cls(*(cuts[percent // 5 - 1] for percent in (10, 25, 50, 75, 90)))


def interleaved(
    runs: Mapping[str, Callable[[], object]], seconds: float, least_rounds: int = LEAST_ROUNDS
) -> dict[str, list[float]]:
    """Seconds by name and round: every round runs each once, until the time is up.

    A disturbance longer than a round affects all alike, and not the ratios within a round. Each round
    starts with another one; a warm-up run of each is not counted.
    """
    for run in runs.values():
        run()
    order = list(runs)
    times: dict[str, list[float]] = {name: [] for name in order}
    end = perf_counter() + seconds
    while len(times[order[0]]) < least_rounds or perf_counter() < end:
        for name in order:
            times[name].append(seconds_of(runs[name]))
        order.append(order.pop(0))
    return times


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that one run takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


MATMUL_SIZE = 2048
MATMUL_RUNS = 20
SUM_BYTES = 2**28
SUM_RUNS = 10


class Bounds(NamedTuple):
    """The machine's peaks, and how each was measured."""

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


def _of_matmul() -> tuple[float, str]:
    left, right = torch.randn(2, MATMUL_SIZE, MATMUL_SIZE).unbind()
    out = torch.empty_like(left)
    best = min(seconds_of(lambda: torch.mm(left, right, out=out)) for _ in range(MATMUL_RUNS))
    source = f"the best of {MATMUL_RUNS} float32 matmuls of {MATMUL_SIZE} cubed"
    return 2 * MATMUL_SIZE**3 / best / 1e9, source


def _of_sum() -> tuple[float, str]:
    tensor = torch.ones(SUM_BYTES // 4)
    source = f"the best of {SUM_RUNS} sums over {SUM_BYTES // 2**20} MiB"
    best = min(seconds_of(tensor.sum) for _ in range(SUM_RUNS))
    return SUM_BYTES / best / 1e9, source
