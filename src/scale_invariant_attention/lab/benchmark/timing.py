"""Timing on a noisy machine: interleaved runs, medians and quartiles, on CPUs and GPUs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import NamedTuple

import torch

LEAST_ROUNDS = 3
# More than the last cache of any GPU.
FLUSHED_BYTES = 2**28

# Runs something, and returns the seconds that it took.
Clock = Callable[[Callable[[], object]], float]


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


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that one run takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


class GpuClock:
    """Seconds between two events around a run, in the order in which the GPU works.

    Before each run the GPU overwrites a buffer, so that no run finds its inputs in a cache. Meanwhile
    the CPU already launches the run, so that a short one does not include the time that launching takes
    as long as that is shorter than the overwriting.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)

    def __call__(self, run: Callable[[], object]) -> float:
        """Seconds that one run takes."""
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        with torch.cuda.device(self._device):
            self._buffer.zero_()
            start.record()
            run()
            end.record()
            torch.cuda.synchronize(self._device)
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: torch.device | str) -> Clock:
    """The clock of a device."""
    device = torch.device(device)
    return GpuClock(device) if device.type == "cuda" else seconds_of


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    seconds: float,
    least_rounds: int = LEAST_ROUNDS,
    clock: Clock = seconds_of,
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
            times[name].append(clock(runs[name]))
        order.append(order.pop(0))
    return times
