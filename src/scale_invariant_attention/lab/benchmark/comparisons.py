"""Named comparisons of a backend with itself and with others, side by side in one run.

A result is computed within every round, in which all sides take one turn; its median over rounds counts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median

import torch
from torch.nn.functional import scaled_dot_product_attention

from ...attention import DistanceAffine
from .problem import DECODE, FORWARD, FORWARD_AND_BACKWARD, Inputs, Problem, Setting
from .records import (
    AT_LEAST,
    AT_MOST,
    CALL_OVERHEAD,
    CHUNK_TIME_TO_SDPA,
    DECODE_TIME_TO_SDPA,
    GRID_TIME,
    HALF_BANDWIDTH,
    HALF_TIME_TO_SDPA,
    KEY_BIAS_COST,
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
    held_to_target,
)
from .rivals import BASELINE, Attention, Rival
from .timing import Spread, interleaved

SHAPES = ("6x128", "12x64")
THREADED_SHAPES = (*SHAPES, "1x128", "1x64")
BOTH_PASSES = (FORWARD, FORWARD_AND_BACKWARD)
HALF = Setting(dtype_name="bfloat16")
# Query heads and key heads of a grouped cache.
GROUPED_SHAPE, KEY_HEADS = "32x128", 8
CHUNKS = (16, 24, 32)
GRID_SHAPE = "6x64"

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

    @classmethod
    def quotient(
        cls, comparison: str, side: str, of: str, target: float, sense: str = AT_MOST
    ) -> "Quantity":
        """The time of one side relative to another's."""
        return cls(comparison, lambda seconds: seconds[side] / seconds[of], target, sense)


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
    grouped: int = 131072
    chunk: int = 16384
    side: int = 64


FULL = Lengths()
QUICK = Lengths(
    usual=64, flex=(64,), window=8, windowed=256, decode=1024, grouped=1024, chunk=256, side=8
)


def all_comparisons(
    rival: Rival, baseline: Rival, flex: Rival | None, read_gigabytes_per_second: float, at: Lengths
) -> Iterator[Comparison]:
    """All comparisons of a backend, with SDPA as the baseline.

    FlexAttention is compared if it is given, and threads if there is a second core.
    """
    for shape, pass_name in product(SHAPES, BOTH_PASSES):
        yield _transform(rival, _problem(shape, at.usual, pass_name))
    for shape in SHAPES:
        yield _table_gradients(rival, _problem(shape, at.usual, FORWARD_AND_BACKWARD))
    for shape, pass_name in product(SHAPES, BOTH_PASSES):
        yield _key_bias(rival, _problem(shape, at.usual, pass_name))
    for shape, length in product(SHAPES, at.flex if flex is not None else ()):
        assert flex is not None
        name = f"time relative to {flex.name}"
        quantity = Quantity.quotient(name, rival.name, flex.name, TIME_TO_FLEX)
        yield _side_by_side(_problem(shape, length, FORWARD), _attentions(rival, flex), quantity)
    for shape, pass_name in product(SHAPES, BOTH_PASSES):
        name = f"window of {at.window}, to the whole triangle"
        yield _side_by_side(
            _problem(shape, at.windowed, pass_name),
            {"window": partial(rival.attention, window=at.window), "full": rival.attention},
            Quantity.quotient(name, "window", "full", WINDOW_TIME),
        )
    for pass_name in BOTH_PASSES:
        yield _grid(rival, _problem(GRID_SHAPE, at.side**2, pass_name), at.side)
    for shape in SHAPES:
        problem = _problem(shape, at.decode, DECODE)
        yield _decode(rival, baseline, problem, read_gigabytes_per_second)
    for pass_name in BOTH_PASSES:
        problem = replace(_problem(SHAPES[0], at.usual, pass_name), setting=HALF)
        target = HALF_TIME_TO_SDPA[pass_name]
        quantity = Quantity.quotient(
            "in bfloat16, time relative to SDPA", rival.name, BASELINE, target
        )
        yield _side_by_side(problem, _attentions(rival, baseline), quantity)
    yield _grouped_decode(rival, _problem(GROUPED_SHAPE, at.grouped, DECODE))
    for queries in CHUNKS:
        yield _chunk(rival, _problem(SHAPES[0], at.chunk, FORWARD), queries)
    for shape, pass_name in product(THREADED_SHAPES if cores() > 1 else (), BOTH_PASSES):
        yield _threads(rival, _problem(shape, at.usual, pass_name))
    for pass_name in (FORWARD, DECODE):
        yield _overhead(rival, baseline, _problem("6x128", TINY_LENGTH, pass_name))


def measure_comparison(comparison: Comparison, seconds: float) -> list[Ratio]:
    """Results of a comparison that runs for at least `seconds` and three rounds."""
    times = interleaved(comparison.runs(), seconds)
    rounds = [dict(zip(times, turn, strict=True)) for turn in zip(*times.values(), strict=True)]
    medians_ms = "; ".join(
        f"{name} {1e3 * median(values) / comparison.calls:.4g}" for name, values in times.items()
    )
    results = []
    for it in comparison.quantities:
        spread = Spread.of([it.of_round(turn) for turn in rounds])
        figures = (spread.median, spread.low, spread.high)
        held = (it.unit, it.sense, it.target, medians_ms, len(rounds))
        results.append(held_to_target(comparison.problem, it.comparison, figures, *held))
    return results


def _transform(rival: Rival, problem: Problem) -> Comparison:
    identity = DistanceAffine.identity(problem.length)
    tables = DistanceAffine.scale_invariant(problem.length)
    sides: dict[str, Attention] = {
        "tau": rival.attention,
        "tables": partial(rival.attention, affine=tables),
        "identity": partial(rival.attention, affine=identity),
    }
    quantities = (
        Quantity.quotient(
            f"transform by {how}, to gain 1 and bias 0", side, "identity", TRANSFORM_COST
        )
        for side, how in (("tau", "tau"), ("tables", "tables made before"))
    )
    return _side_by_side(problem, sides, *quantities)


def _table_gradients(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        fixed = DistanceAffine.scale_invariant(problem.length)
        tables = fixed.gain.clone().requires_grad_(), fixed.bias.clone().requires_grad_()
        learned = partial(rival.attention, affine=DistanceAffine(*tables))
        unlearned = partial(rival.attention, affine=fixed)
        return {
            "learned": problem.run(learned, inputs, tables),
            "fixed": problem.run(unlearned, inputs),
            "forward": partial(unlearned, *inputs[:3]),
        }

    quantity = Quantity(
        "table gradients, to backward without them",
        lambda t: (t["learned"] - t["fixed"]) / (t["fixed"] - t["forward"]),
        TABLE_GRADIENTS,
        unit=SHARE,
    )
    return Comparison(problem, runs, [quantity])


def _grid(rival: Rival, problem: Problem, side: int) -> Comparison:
    """Tokens in a plane against tokens with explicit positions; every query sees every key."""
    index = torch.arange(side)
    places = {
        "grid": {"key_coordinates": torch.cartesian_prod(index, index)},
        "line": {"key_positions": torch.arange(side**2)},
    }
    sides: dict[str, Attention] = {
        name: partial(rival.attention, is_causal=False, **where) for name, where in places.items()
    }
    name = f"a grid of {side} x {side}, to as many tokens on a line"
    return _side_by_side(problem, sides, Quantity.quotient(name, "grid", "line", GRID_TIME))


def _key_bias(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        rows, heads, length, _ = inputs.key.shape
        generator = torch.Generator().manual_seed(0)
        key_bias = torch.randn(rows, heads, length, generator=generator).requires_grad_()
        biased = partial(rival.attention, key_bias=key_bias)
        return {
            "with": problem.run(biased, inputs, [key_bias]),
            "without": problem.run(rival.attention, inputs),
        }

    quantity = Quantity.quotient(
        "key bias with its gradient, to none", "with", "without", KEY_BIAS_COST
    )
    return Comparison(problem, runs, [quantity])


def _decode(
    rival: Rival, baseline: Rival, problem: Problem, read_gigabytes_per_second: float
) -> Comparison:
    least_seconds = problem.cache_bytes / read_gigabytes_per_second / 1e9
    time = Quantity.quotient(
        "one query, time relative to SDPA", rival.name, BASELINE, DECODE_TIME_TO_SDPA
    )
    bandwidth = Quantity(
        "one query, share of read bandwidth",
        lambda t: least_seconds / t[rival.name],
        SHARE_OF_BANDWIDTH,
        AT_LEAST,
        SHARE,
    )
    return _side_by_side(problem, _attentions(rival, baseline), time, bandwidth)


def _grouped_decode(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        # A view of fewer heads would keep all of them in memory.
        key, value = (it[:, :KEY_HEADS].clone() for it in (inputs.key, inputs.value))
        grouped = inputs._replace(key=key, value=value)
        half = Inputs(*(it.to(HALF.dtype) for it in grouped))
        sides = {"float32": grouped, "bfloat16": half}
        return {name: problem.run(rival.attention, it) for name, it in sides.items()}

    quantity = Quantity(
        f"one query, {KEY_HEADS} key heads, bytes per second of bfloat16 to float32",
        lambda t: t["float32"] / t["bfloat16"] / 2,
        HALF_BANDWIDTH,
        AT_LEAST,
        SHARE,
    )
    return Comparison(problem, runs, [quantity])


def _chunk(rival: Rival, problem: Problem, queries: int) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        chunk = inputs._replace(query=inputs.query[:, :, -queries:].contiguous())
        seen = torch.ones(queries, problem.length, dtype=torch.bool).tril(problem.length - queries)
        masked = partial(scaled_dot_product_attention, attn_mask=seen)
        sides: dict[str, Attention] = {rival.name: rival.attention, BASELINE: masked}
        return {name: problem.run(attention, chunk) for name, attention in sides.items()}

    name = f"the last {queries} queries, time relative to SDPA with a mask"
    quantity = Quantity.quotient(name, rival.name, BASELINE, CHUNK_TIME_TO_SDPA)
    return Comparison(problem, runs, [quantity])


def _threads(rival: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        run = problem.run(rival.attention, problem.inputs())
        return {"one": partial(_with_threads, 1, run), "two": partial(_with_threads, 2, run)}

    quantity = Quantity.quotient("speed-up by a second thread", "one", "two", SPEED_UP, AT_LEAST)
    return Comparison(problem, runs, [quantity])


def _overhead(rival: Rival, baseline: Rival, problem: Problem) -> Comparison:
    def runs() -> Runs:
        sides = _attentions(rival, baseline)
        return {name: partial(_repeat, side, *problem.inputs()[:3]) for name, side in sides.items()}

    quantity = Quantity(
        "time of a tiny call beyond SDPA's",
        lambda t: 1e6 * (t[rival.name] - t[BASELINE]) / TINY_CALLS,
        CALL_OVERHEAD,
        unit=MICROSECONDS,
    )
    return Comparison(problem, runs, [quantity], calls=TINY_CALLS)


def _attentions(*rivals: Rival) -> dict[str, Attention]:
    return {rival.name: rival.attention for rival in rivals}


def _side_by_side(
    problem: Problem, sides: Mapping[str, Attention], *quantities: Quantity
) -> Comparison:
    def runs() -> Runs:
        inputs = problem.inputs()
        return {name: problem.run(attention, inputs) for name, attention in sides.items()}

    return Comparison(problem, runs, quantities)


def _with_threads(threads: int, run: Callable[[], object]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run()
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def _repeat(attention: Attention, *tensors: torch.Tensor) -> None:
    for _ in range(TINY_CALLS):
        attention(*tensors)


def _problem(shape: str, length: int, pass_name: str) -> Problem:
    return Problem.named(shape, str(length), pass_name)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
