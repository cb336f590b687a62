"""Time and memory of the op beside plain SDPA, which does not even compute the transform.

    python benchmarks/benchmark_attention.py
    python benchmarks/benchmark_attention.py --lengths 4096 --shapes 6x128 --passes forward --flex

Rivals take turns round by round; figures are medians with quartiles, and a ratio to SDPA is the
median of the ratios within the rounds. Shares of peak count the exact causal triangle against the
best float32 matmul of this machine. A rival that is wrong ends the benchmark before any figure.
"""

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import scale_invariant_attention as sia
from correctness import fault
from peak_memory import peak_memory
from problem import PASSES, Problem
from results import Row, provenance, write_results
from rivals import BASELINE, Rival, rivals
from timing import MATMUL_RUNS, MATMUL_SIZE, Quartiles, interleaved, matmul_gflops


class Extent(NamedTuple):
    """How much to measure when the options do not say."""

    shapes: Sequence[str]
    lengths: Sequence[str]
    seconds: float


FULL = Extent(("6x128", "12x64"), ("1024", "2048", "4096", "8192", "16384"), seconds=30)
QUICK = Extent(("2x32",), ("128", "256"), seconds=0.2)


def main(
    arguments: Sequence[str] | None = None, contenders: Mapping[str, Rival] | None = None
) -> int:
    """Run the benchmark and return the exit status: 1 if a rival is wrong.

    `contenders` are the rivals to choose from, by default all that can run here.
    """
    options = _options(arguments, contenders or rivals())
    faults = [found for rival in options.rivals if (found := fault(rival)) is not None]
    if faults:
        print(*faults, "No figures.", sep="\n", file=sys.stderr)
        return 1

    console = Console()
    origin = provenance()
    peak = matmul_gflops()
    origin["matmul_gflops"] = f"{peak:.4g}"
    console.print(
        f"{origin['cpu']}, {origin['threads']} threads, load {origin['load']} before the run; "
        f"torch {origin['torch']}, commit {origin['commit']}. Bound: "
        f"{peak:.0f} GFLOP/s, the best of {MATMUL_RUNS} float32 matmuls of {MATMUL_SIZE} cubed."
    )
    rows: list[Row] = []
    for problem in options.problems:
        console.print(f"{problem.shape}, {problem.length} tokens, {problem.pass_name}")
        taking_part = []
        for rival in options.rivals:
            objection = problem.objection(rival, options.memory_limit)
            if objection is None:
                taking_part.append(rival)
            else:
                console.print(f"  without {rival.name}: {objection}", style="dim")
        rows += measured(problem, taking_part, options.seconds, peak, options.memory)
        # After every problem, so that a run that is broken off leaves what it has measured.
        write_results(options.output, origin, rows)
    console.print(_table(rows))
    console.print(f"Written to {options.output}", style="dim", soft_wrap=True)
    return 0


def measured(
    problem: Problem, taking_part: Sequence[Rival], seconds: float, peak: float, memory: bool
) -> Iterator[Row]:
    """A row for each rival, SDPA being one of them."""
    inputs = problem.inputs()
    times = interleaved({r.name: problem.run(r, inputs) for r in taking_part}, seconds)
    sizes = (problem.heads, problem.length, problem.head_dim)
    for name, seconds_by_round in times.items():
        time = Quartiles.of(seconds_by_round)
        rounds = zip(seconds_by_round, times[BASELINE], strict=True)
        ratio = Quartiles.of([mine / baseline for mine, baseline in rounds])
        gflops = problem.flops / time.median / 1e9
        yield Row(
            problem.shape,
            problem.length,
            problem.pass_name,
            name,
            median_ms=time.median * 1e3,
            low_ms=time.low * 1e3,
            high_ms=time.high * 1e3,
            ratio_to_sdpa=ratio.median,
            ratio_low=ratio.low,
            ratio_high=ratio.high,
            gflops=gflops,
            share_of_peak=gflops / peak,
            peak_memory_mib=peak_memory(name, *sizes, problem.backward) / 2**20 if memory else None,
            rounds=len(seconds_by_round),
        )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(caption="Memory: peak above inputs, outputs and gradients.")
    for heading in ("shape", "length", "pass", "rival"):
        table.add_column(heading, justify="right" if heading == "length" else "left")
    for heading in ("ms", "to SDPA", "of peak", "MiB"):
        table.add_column(heading, justify="right")
    before: tuple[object, ...] = ()
    for row in rows:
        problem = (row.shape, row.length, row.pass_name)
        if before and problem != before:
            table.add_section()
        before = problem
        memory = "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.1f}"
        table.add_row(
            row.shape,
            str(row.length),
            row.pass_name,
            row.rival,
            f"{row.median_ms:.{1 if row.median_ms < 1000 else 0}f}",
            f"{row.ratio_to_sdpa:.2f}",
            f"{row.share_of_peak:.0%}",
            memory,
        )
    return table


def _options(arguments: Sequence[str] | None, contenders: Mapping[str, Rival]) -> Namespace:
    """The options, with `rivals` the rivals themselves and `problems` made of the rest."""
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Lists take spaces or commas.",
    )
    parser.add_argument("--lengths", nargs="+", metavar="L", help="in tokens")
    parser.add_argument("--shapes", nargs="+", metavar="HxD", help="heads x head size, as in 6x128")
    parser.add_argument("--passes", nargs="+", metavar="PASS", help=" and ".join(PASSES))
    parser.add_argument("--rivals", nargs="+", metavar="NAME", help="of " + ", ".join(contenders))
    parser.add_argument("--flex", action="store_true", help="FlexAttention too: it compiles first")
    parser.add_argument("--seconds", type=float, help="a problem, for all rivals together")
    parser.add_argument("--memory", action=BooleanOptionalAction, default=True, help="measure it")
    parser.add_argument("--memory-limit", type=float, default=4, metavar="GiB", help="for scores")
    parser.add_argument("--output", type=Path, default=Path("results.csv"), metavar="CSV")
    parser.add_argument("--quick", action="store_true", help="tiny problems: does it run?")
    options = parser.parse_args(arguments)

    defaults = QUICK if options.quick else FULL
    names = _items(options.rivals, [r.name for r in contenders.values() if r.invited])
    names += ["flex"] if options.flex else []
    if options.seconds is None:
        options.seconds = defaults.seconds
    try:
        options.rivals = [_rival(name, contenders) for name in dict.fromkeys([BASELINE, *names])]
        options.problems = [
            Problem.named(shape, length, pass_name)
            for shape in _items(options.shapes, defaults.shapes)
            for length in _items(options.lengths, defaults.lengths)
            for pass_name in _items(options.passes, PASSES)
        ]
    except ValueError as error:
        parser.error(str(error))
    options.memory_limit = int(options.memory_limit * 2**30)
    return options


def _items(words: Sequence[str] | None, default: Iterable[str]) -> list[str]:
    return list(default) if words is None else ",".join(words).split(",")


def _rival(name: str, contenders: Mapping[str, Rival]) -> Rival:
    if name in contenders:
        return contenders[name]
    absence = sia.unavailable_backends().get(name, f"rivals are {', '.join(contenders)}")
    raise ValueError(f"rival {name!r} cannot take part: {absence}")


if __name__ == "__main__":
    sys.exit(main())
