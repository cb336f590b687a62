"""Named comparisons of a backend with itself and with others, side by side in one run.

A result is computed within every round, in which all sides take one turn; its median over rounds counts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from ...attention import DistanceAffine
from .problem import DECODE, FORWARD, FORWARD_AND_BACKWARD, Problem
from .records import (
    AT_LEAST,
    AT_MOST,
    CALL_OVERHEAD,
    DECODE_TIME_TO_SDPA,
    MICROSECONDS,
    RATIO,
    SHARE,
    SHARE_OF_BANDWIDTH,
    SPEED_UP,
    TABLE_GRADIENTS,
    TIME_TO_FLEX,
    TRANSFORM_COST,
    WINDOW_TIME,
    Ratio,
    is_met,
)
from .rivals import BASELINE, Attention, Rival
from .timing import Spread, interleaved

SHAPES = ("6x128", "12x64")
THREADED_SHAPES = (*SHAPES, "1x128", "1x64")
BOTH_PASSES = (FORWARD, FORWARD_AND_BACKWARD)

TINY_LENGTH = 16
# Calls in one turn of a tiny problem, to get far above the resolution of the clock.
TINY_CALLS = 200

Runs = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Quantity:
    """A number computed from the seconds of one round, and its target."""

    comparison: str
    of_round: Callable[[Mapping[str, float]], float]
    target: float
    sense: str = AT_MOST
    unit: str = RATIO


@dataclass(frozen=True)
class Comparison:
    """Sides that take turns at one problem, built by `runs` when needed, and the quantities compared.

    `calls` is how often a side calls the op in one turn.
    """

    problem: Problem
    runs: Callable[[], Runs]
    quantities: Sequence[Quantity]
    calls: int = 1

    @property
    def names(self) -> str:
        """The names of the quantities."""
        return " and ".join(it.comparison for it in self.quantities)

    def __str__(self) -> str:
        return str(self.problem)


@dataclass(frozen=True)
class Lengths:
    """The tokens of each comparison."""

    usual: int = 4096
    flex: tuple[int, ...] = (4096, 8192)
    window: int = 512
    windowed: int = 16384
    decode: int = 65536


FULL = Lengths()
QUICK = Lengths(usual=64, flex=(64,), window=8, windowed=256, decode=1024)


def all_comparisons(
    rival: Rival, baseline: Rival, flex: Rival | None, read_gigabytes_per_second: float, at: Lengths
) -> Iterator[Comparison]:
    """All comparisons of a backend, with SDPA as the baseline.

    FlexAttention is compared if it is given, and threads if there is a second core.
    """
    for shape in SHAPES:
        for pass_name in BOTH_PASSES:
            yield _transform(rival, _problem(shape, at.usual, pass_name))
    for shape in SHAPES:
        yield _table_gradients(rival, _problem(shape, at.usual, FORWARD_AND_BACKWARD))
    if flex is not None:
        for shape in SHAPES:
            for length in at.flex:
                yield _against(rival, flex, _problem(shape, length, FORWARD))
    for shape in SHAPES:
        for pass_name in BOTH_PASSES:
            yield _window(rival, _problem(shape, at.windowed, pass_name), at.window)
    for shape in SHAPES:
        yield _decode(
            rival, baseline, _problem(shape, at.decode, DECODE), read_gigabytes_per_second
        )
    if cores() > 1:
        for shape in THREADED_SHAPES:
            for pass_name in BOTH_PASSES:
                yield _threads(rival, _problem(shape, at.usual, pass_name))
    for pass_name in (FORWARD, DECODE):
        yield _overhead(rival, baseline, _problem("6x128", TINY_LENGTH, pass_name))


def measure_comparison(comparison: Comparison, seconds: float) -> list[Ratio]:
    """The results of a comparison that runs for so many seconds and at least three rounds."""
    times = interleaved(comparison.runs(), seconds)
    rounds = [dict(zip(times, turn, strict=True)) for turn in zip(*times.values(), strict=True)]
    medians_ms = "; ".join(
        f"{name} {1e3 * median(values) / comparison.calls:.4g}" for name, values in times.items()
    )
    return [_ratio(comparison.problem, it, rounds, medians_ms) for it in comparison.quantities]


def _ratio(
    problem: Problem, quantity: Quantity, rounds: Sequence[Mapping[str, float]], medians_ms: str
) -> Ratio:
    spread = Spread.of([quantity.of_round(turn) for turn in rounds])
    return Ratio(
        quantity.comparison,
        problem.shape,
        problem.length,
        problem.pass_name,
        figure=spread.median,
        low=spread.low,
        high=spread.high,
        unit=quantity.unit,
        sense=quantity.sense,
        target=quantity.target,
        met=is_met(spread.median, quantity.sense, quantity.target),
        medians_ms=medians_ms,
        rounds=len(rounds),
    )


def _transform(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        identity = DistanceAffine.identity(problem.length)
        tables = DistanceAffine.scale_invariant(problem.length)
        return {
            "tau": problem.run(rival.attention, inputs),
            "tables": problem.run(partial(rival.attention, affine=tables), inputs),
            "identity": problem.run(partial(rival.attention, affine=identity), inputs),
        }

    return Comparison(
        problem,
        runs,
        [
            Quantity(
                "transform by tau, to gain 1 and bias 0",
                lambda t: t["tau"] / t["identity"],
                TRANSFORM_COST,
            ),
            Quantity(
                "transform by tables made before, to gain 1 and bias 0",
                lambda t: t["tables"] / t["identity"],
                TRANSFORM_COST,
            ),
        ],
    )


def _table_gradients(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        fixed = DistanceAffine.scale_invariant(problem.length)
        learned = DistanceAffine(
            fixed.gain.clone().requires_grad_(), fixed.bias.clone().requires_grad_()
        )
        *tensors, _ = inputs
        return {
            "learned": problem.run(
                partial(rival.attention, affine=learned), inputs, (learned.gain, learned.bias)
            ),
            "fixed": problem.run(partial(rival.attention, affine=fixed), inputs),
            "forward": partial(rival.attention, *tensors, affine=fixed),
        }

    return Comparison(
        problem,
        runs,
        [
            Quantity(
                "table gradients, to backward without them",
                lambda t: (t["learned"] - t["fixed"]) / (t["fixed"] - t["forward"]),
                TABLE_GRADIENTS,
                unit=SHARE,
            )
        ],
    )


def _against(rival: Rival, other: Rival, problem: Problem) -> Comparison:
    return Comparison(
        problem,
        _side_by_side(problem, {rival.name: rival.attention, other.name: other.attention}),
        [
            Quantity(
                f"time relative to {other.name}",
                lambda t: t[rival.name] / t[other.name],
                TIME_TO_FLEX,
            )
        ],
    )


def _window(rival: Rival, problem: Problem, window: int) -> Comparison:
    windowed: Attention = partial(rival.attention, window=window)
    sides = {"window": windowed, "full": rival.attention}
    quantity = Quantity(
        f"window of {window}, to the whole triangle",
        lambda t: t["window"] / t["full"],
        WINDOW_TIME,
    )
    return Comparison(problem, _side_by_side(problem, sides), [quantity])


def _decode(
    rival: Rival, baseline: Rival, problem: Problem, read_gigabytes_per_second: float
) -> Comparison:
    least_seconds = problem.cache_bytes / read_gigabytes_per_second / 1e9
    sides = {rival.name: rival.attention, BASELINE: baseline.attention}
    return Comparison(
        problem,
        _side_by_side(problem, sides),
        [
            Quantity(
                "one query, time relative to SDPA",
                lambda t: t[rival.name] / t[BASELINE],
                DECODE_TIME_TO_SDPA,
            ),
            Quantity(
                "one query, share of read bandwidth",
                lambda t: least_seconds / t[rival.name],
                SHARE_OF_BANDWIDTH,
                AT_LEAST,
                SHARE,
            ),
        ],
    )


def _threads(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        run = problem.run(rival.attention, problem.inputs())
        return {"one": _with_threads(1, run), "two": _with_threads(2, run)}

    quantity = Quantity(
        "speed-up by a second thread", lambda t: t["one"] / t["two"], SPEED_UP, AT_LEAST
    )
    return Comparison(problem, runs, [quantity])


def _overhead(rival: Rival, baseline: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        sides = {rival.name: rival.attention, BASELINE: baseline.attention}
        return {name: _repeated(problem, attention) for name, attention in sides.items()}

    quantity = Quantity(
        "time of a tiny call beyond SDPA's",
        lambda t: 1e6 * (t[rival.name] - t[BASELINE]) / TINY_CALLS,
        CALL_OVERHEAD,
        unit=MICROSECONDS,
    )
    return Comparison(problem, runs, [quantity], calls=TINY_CALLS)


def _side_by_side(problem: Problem, sides: Mapping[str, Attention]) -> Callable[[], Runs]:
    def runs() -> Runs:
        inputs = problem.inputs()
        return {name: problem.run(attention, inputs) for name, attention in sides.items()}

    return runs


def _with_threads(threads: int, run: Callable[[], object]) -> Callable[[], None]:
    def limited() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            run()
        finally:
            torch.set_num_threads(before)

    return limited


def _repeated(problem: Problem, attention: Attention) -> Callable[[], None]:
    *tensors, _ = problem.inputs()

    def calls() -> None:
        with torch.no_grad():
            for _ in range(TINY_CALLS):
                attention(*tensors)

    return calls


def _problem(shape: str, length: int, pass_name: str) -> Problem:
    return Problem.named(shape, str(length), pass_name)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
