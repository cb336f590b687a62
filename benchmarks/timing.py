"""Times on a noisy machine: rivals take turns, and medians and quartiles speak for them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import NamedTuple

import torch

LEAST_ROUNDS = 5
MATMUL_SIZE = 2048
MATMUL_RUNS = 20


class Quartiles(NamedTuple):
    """The lower quartile, the median and the upper quartile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Those of at least two values."""
        return cls(*quantiles(values, n=4, method="inclusive"))


def interleaved(
    runs: Mapping[str, Callable[[], object]], seconds: float, least_rounds: int = LEAST_ROUNDS
) -> dict[str, list[float]]:
    """Seconds by name and round: one run of each in a round, rounds until the time is up.

    A disturbance that outlasts a round thus falls on everyone, and ratios within a round are
    spared. Each round starts with another one. A run of each to warm up is not counted.
    """
    for run in runs.values():
        run()
    order = list(runs)
    times: dict[str, list[float]] = {name: [] for name in order}
    end = perf_counter() + seconds
    while len(times[order[0]]) < least_rounds or perf_counter() < end:
        for name in order:
            times[name].append(_seconds(runs[name]))
        order.append(order.pop(0))
    return times


def matmul_gflops() -> float:
    """The bound: the best of `MATMUL_RUNS` float32 products of square matrices, in GFLOP/s."""
    left, right = torch.randn(2, MATMUL_SIZE, MATMUL_SIZE).unbind()
    out = torch.empty_like(left)
    best = min(_seconds(lambda: torch.mm(left, right, out=out)) for _ in range(MATMUL_RUNS))
    return 2 * MATMUL_SIZE**3 / best / 1e9


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start
