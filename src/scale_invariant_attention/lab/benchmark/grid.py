"""The grid of the benchmark: every rival at every problem.

A ratio to SDPA is the median of the ratios within rounds. Shares of peak relate the work of the exact
causal triangle to the machine's bound; for decoding, the bound is reading keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...provenance import CHANGED, IDENTITY
from .bounds import Bounds
from .peak_memory import peak_memory, peak_memory_on_gpu
from .problem import DECODE, PASSES, PLAIN, Problem, Setting
from .records import Timing, read_records
from .rivals import BASELINE, Rival
from .timing import Spread, clock_for, interleaved

# What a header says beyond the provenance, and must agree to resume.
IN_HEADER = ("rivals", "device", "dtype", "batch", "driver")

# A rival's speed is estimated at this fraction of the length.
_ESTIMATED_AT = 8


@dataclass(frozen=True)
class Extent:
    """Default measurements.

    A batch has as many sequences as make up `tokens`, or `decode_tokens` in a cache; at least one.
    """

    shapes: Sequence[str]
    lengths: Sequence[str]
    decode_lengths: Sequence[str]
    seconds: float
    slowest: float = 60
    tokens: int = 1
    decode_tokens: int = 1

    @property
    def rule(self) -> str:
        """The sizes of batches in words."""
        if self.tokens == self.decode_tokens == 1:
            return "batch 1"
        return (
            f"batches of {self.tokens:,} tokens, for decoding {self.decode_tokens:,} tokens of "
            "cache, and at least one sequence"
        )

    def batch(self, length: int, pass_name: str) -> int:
        """The number of sequences of a length."""
        return max(1, (self.decode_tokens if pass_name == DECODE else self.tokens) // length)


FULL = Extent(
    shapes=("6x128", "12x64"),
    lengths=("512", "1024", "2048", "4096", "8192", "16384", "32768"),
    decode_lengths=("4096", "16384", "65536"),
    seconds=30,
)
GPU = Extent(
    shapes=("32x64", "16x128"),
    lengths=("1024", "2048", "4096", "8192", "16384", "32768", "65536"),
    decode_lengths=("1024", "4096", "16384", "65536"),
    seconds=2,
    slowest=2,
    tokens=16384,
    decode_tokens=131072,
)
QUICK = Extent(shapes=("2x32",), lengths=("128", "256"), decode_lengths=("512",), seconds=0.2)


def problems(
    extent: Extent,
    shapes: Sequence[str] = (),
    lengths: Sequence[str] = (),
    passes: Sequence[str] = (),
    setting: Setting = PLAIN,
) -> list[Problem]:
    """Shapes by lengths by passes, by default those of `extent`; the cheapest first.

    >>> [str(problem) for problem in problems(FULL, ["6x128"], ["512", "64"], ["forward"])]
    ['6x128, 64 tokens, forward', '6x128, 512 tokens, forward']
    """
    grid = (
        Problem.named(shape, length, pass_name)
        for pass_name in passes or PASSES
        for shape in shapes or extent.shapes
        for length in lengths or (extent.decode_lengths if pass_name == DECODE else extent.lengths)
    )
    placed = (
        replace(it, batch=extent.batch(it.length, it.pass_name), setting=setting) for it in grid
    )
    return sorted(placed, key=lambda problem: problem.flops)


def skipped_reason(
    problem: Problem, rival: Rival, memory_limit: float, slowest: float
) -> str | None:
    """Why a rival skips a problem, None if it takes part.

    Score matrices may take `memory_limit` bytes. One run may take `slowest` seconds, estimated at an
    eighth of the length. SDPA, the baseline, always takes part.
    """
    reason = problem.unsupported_reason(rival, memory_limit)
    if reason is not None or rival.name == BASELINE:
        return reason
    short = replace(problem, length=max(1, problem.length // _ESTIMATED_AT))
    try:
        run = short.run(rival.attention, short.inputs())
        # The first run may compile.
        run()
        expected = clock_for(problem.setting.device)(run) * problem.flops / short.flops
        if expected > slowest:
            return f"a run would take about {expected:.0f} s, and {slowest:g} s are allowed"
        if problem.setting.is_cuda:
            # The memory may not suffice, or the kernel refuse a size.
            problem.run(rival.attention, problem.inputs())()
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        return f"it raises {type(error).__name__}: {first}"
    return None


def measure_problem(
    problem: Problem, taking_part: Sequence[Rival], seconds: float, bounds: Bounds, memory: bool
) -> list[Timing]:
    """The timing of each rival, SDPA being one of them."""
    inputs = problem.inputs()
    runs = {rival.name: problem.run(rival.attention, inputs) for rival in taking_part}
    times = interleaved(runs, seconds, clock=clock_for(problem.setting.device))

    def peak(name: str) -> int | None:
        if not memory:
            return None
        return (
            peak_memory_on_gpu(runs[name], problem.setting.device)
            if problem.setting.is_cuda
            else peak_memory(name, problem)
        )

    return [
        timing(problem, name, mine, times[BASELINE], bounds, peak(name))
        for name, mine in times.items()
    ]


def timing(
    problem: Problem,
    rival: str,
    seconds: Sequence[float],
    baseline_seconds: Sequence[float],
    bounds: Bounds,
    memory: int | None,
) -> Timing:
    """The timing of one rival from its times and SDPA's in the same rounds."""
    time = Spread.of(seconds)
    pairs = zip(seconds, baseline_seconds, strict=True)
    ratio = Spread.of([mine / baseline for mine, baseline in pairs])
    gflops = problem.flops / time.median / 1e9
    reading = problem.cache_bytes / time.median / 1e9 if problem.pass_name == DECODE else None
    return Timing(
        problem.shape,
        problem.length,
        problem.pass_name,
        rival,
        median_ms=time.median * 1e3,
        low_ms=time.low * 1e3,
        high_ms=time.high * 1e3,
        tenth_ms=time.tenth * 1e3,
        ninetieth_ms=time.ninetieth * 1e3,
        ratio_to_sdpa=ratio.median,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        gflops=gflops,
        share_of_peak=gflops / bounds.peak_gflops,
        gigabytes_per_second=reading,
        share_of_bandwidth=None if reading is None else reading / bounds.read_gigabytes_per_second,
        peak_memory_mib=None if memory is None else memory / 2**20,
        rounds=len(seconds),
    )


def read_resumable(path: Path, origin: dict[str, str]) -> tuple[dict[str, str], list[Timing]]:
    """Header and rows to resume from; code, machine and rivals must be those of `origin`."""
    header, rows = read_records(path, Timing)
    for name in (*IDENTITY, *(name for name in IN_HEADER if name in origin)):
        if header.get(name) != origin[name]:
            raise ValueError(
                f"{path} was recorded with {name} {header.get(name)!r}, and this is "
                f"{origin[name]!r}: start over without --resume, or give another --output"
            )
    if origin["commit"].endswith(CHANGED):
        raise ValueError(
            f"{path} was recorded from uncommitted changes, which may differ from the present ones: "
            f"commit them, and start over without --resume"
        )
    return header, rows


def is_recorded(problem: Problem, rows: Sequence[Timing]) -> bool:
    """Whether a problem is among the rows, which then have all its rivals."""
    key = (problem.shape, problem.length, problem.pass_name)
    return any((row.shape, row.length, row.pass_name) == key for row in rows)
