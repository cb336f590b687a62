"""Times on a noisy machine: rivals take turns, and medians and quartiles speak for them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import NamedTuple

LEAST_ROUNDS = 3


class Spread(NamedTuple):
    """The median of some values, their quartiles, and the tenths at both ends."""

    tenth: float
    low: float
    median: float
    high: float
    ninetieth: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """That of at least two values.

        >>> Spread.of([5, 1, 2, 4, 3])
        Spread(tenth=1.4, low=2.0, median=3.0, high=4.0, ninetieth=4.6)
        """
        cuts = quantiles(values, n=20, method="inclusive")
        return cls(*(cuts[percent // 5 - 1] for percent in (10, 25, 50, 75, 90)))


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
            times[name].append(seconds_of(runs[name]))
        order.append(order.pop(0))
    return times


def seconds_of(run: Callable[[], object]) -> float:
    """How long one run takes."""
    start = perf_counter()
    run()
    return perf_counter() - start
