"""Context parallelism against one process with as many threads: time and peak memory.

    python -m scale_invariant_attention.lab.benchmark.context_parallel \\
        --shape 6x128 --length 16384 --processes 2 --threads 2 \\
        --output benchmarks/results/context-parallel-16k.csv

One process runs the op on the whole sequence with all threads. Against it, several processes hold a part
of the sequence each, and have their share of the threads. All of them are started once and take turns,
so that both sides see the same machine. Processor time per thread is less disturbed by other work on the
machine than elapsed time, but does not include waiting.

Peak memory is that of a rank above what it holds before it makes its inputs, so that inputs, outputs
and gradients count; it is measured in processes of its own, whose malloc returns freed blocks to the
system.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...attention import scale_invariant_attention
from ...attention.context_parallel import SequenceLayout, context_parallel_attention
from ...provenance import provenance
from .peak_memory import PROMPT_MALLOC, WARM_UP_LENGTH, reset_mark, status
from .problem import Inputs, Problem
from .records import ContextParallelTiming, write_records

MODULE = f"{__package__}.context_parallel"
PATIENCE = timedelta(hours=1)
MIB = 2**20


@dataclass(frozen=True)
class Side:
    """One side of the comparison: a number of processes, each with some threads."""

    problem: Problem
    method: str
    layout: str
    processes: int
    threads: int

    @property
    def words(self) -> list[str]:
        """The side as arguments of a worker."""
        problem = self.problem
        sizes = (problem.shape, str(problem.length), problem.pass_name)
        return [*sizes, self.method, self.layout, str(self.processes), str(self.threads)]

    @classmethod
    def of_words(cls, words: list[str]) -> "Side":
        """The inverse of :attr:`words`."""
        *sizes, method, layout, processes, threads = words
        return cls(Problem.named(*sizes), method, layout, int(processes), int(threads))


class Measured(NamedTuple):
    """Seconds, processor seconds of all threads, and MiB of one run."""

    seconds: float
    processor_seconds: float
    mib: float


class Workers:
    """The processes of one side, which run whenever they are asked to."""

    def __init__(self, side: Side, folder: str, environment: dict[str, str]) -> None:
        threads = {"OMP_NUM_THREADS": str(side.threads)}
        store = f"{folder}/{side.processes}-{len(environment)}"
        self._children = [
            subprocess.Popen(  # noqa: S603  this module itself
                [sys.executable, "-m", MODULE, "--worker", store, str(rank), *side.words],
                env=os.environ | threads | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(side.processes)
        ]

    def run(self) -> Measured:
        """Run once: the most of any process."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("run\n")
            child.stdin.flush()
        answers = []
        for child in self._children:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"a process ended with exit status {child.wait()}")
            answers.append(json.loads(line))
        return Measured(*map(max, zip(*answers, strict=True)))

    def end(self) -> None:
        """End the processes."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
        for child in self._children:
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


@contextmanager
def started(sides: list[Side], environment: dict[str, str]) -> Iterator[list[Workers]]:
    """The workers of several sides."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [Workers(side, folder, environment) for side in sides]
        try:
            yield workers
        finally:
            for it in workers:
                it.end()


def compare(
    sides: list[Side], rounds: int, say: Callable[[str], None]
) -> list[ContextParallelTiming]:
    """Time all sides in turn, then measure their memory; ratios are to the first side."""
    found: list[list[Measured]] = [[] for _ in sides]
    with started(sides, {}) as workers:
        for index in range(rounds):
            for side, runs, it in zip(sides, found, workers, strict=True):
                runs.append(it.run())
                spent = f"{runs[-1].seconds:.2f} s, {runs[-1].processor_seconds:.2f} s of processor"
                say(f"round {index + 1}: {side.processes} x {side.threads}: {spent}")
    memory = []
    for side in sides:
        with started([side], PROMPT_MALLOC) as (it,):
            memory.append(it.run().mib)
        say(f"{side.processes} x {side.threads}: {memory[-1]:.0f} MiB")
    seconds = [[it.seconds for it in runs] for runs in found]
    per_thread = [
        median(it.processor_seconds for it in runs) / side.threads
        for runs, side in zip(found, sides, strict=True)
    ]
    return [
        ContextParallelTiming(
            shape=side.problem.shape,
            length=side.problem.length,
            pass_name=side.problem.pass_name,
            method=side.method if side.processes > 1 else "op",
            layout=side.layout if side.processes > 1 else "whole",
            processes=side.processes,
            threads=side.threads,
            median_s=median(times),
            low_s=min(times),
            high_s=max(times),
            ratio=median(mine / first for mine, first in zip(times, seconds[0], strict=True)),
            processor_s=busy,
            processor_ratio=busy / per_thread[0],
            peak_memory_mib=mib,
            memory_ratio=mib / memory[0],
            rounds=rounds,
        )
        for side, times, busy, mib in zip(sides, seconds, per_thread, memory, strict=True)
    ]


def work(store: str, rank: int, side: Side) -> None:
    """Run the problem whenever a line arrives, and print seconds and bytes."""
    torch.set_num_threads(side.threads)
    if side.processes > 1:
        dist.init_process_group(
            "gloo", f"file://{store}", timeout=PATIENCE, rank=rank, world_size=side.processes
        )
    few = replace(side.problem, length=WARM_UP_LENGTH)
    _run(replace(side, problem=few))
    for _ in sys.stdin:
        floor = status("VmRSS")
        reset_mark()
        spent = process_time()
        seconds = _run(side)
        measured = Measured(seconds, process_time() - spent, (status("VmHWM") - floor) / MIB)
        print(json.dumps(measured), flush=True)
    if side.processes > 1:
        dist.destroy_process_group()


def _run(side: Side) -> float:
    """Seconds of one run with new inputs."""
    problem = side.problem
    if side.processes == 1:
        run = problem.run(scale_invariant_attention, problem.inputs())
    else:
        layout = SequenceLayout.of_group(problem.length, kind=side.layout)
        inputs = replace(problem, length=layout.local_length).inputs()

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            out: Tensor = context_parallel_attention(
                query, key, value, layout=layout, method=side.method
            )
            return out

        run = problem.run(attention, Inputs(*inputs))
        dist.barrier()
    start = perf_counter()
    run()
    return perf_counter() - start


def main() -> None:
    """The command."""
    if sys.argv[1:2] == ["--worker"]:
        store, rank, *words = sys.argv[2:]
        work(store, int(rank), Side.of_words(words))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="6x128", help="heads x head size")
    parser.add_argument("--length", default="16384", help="tokens")
    parser.add_argument("--pass", default="forward+backward", dest="pass_name")
    parser.add_argument("--method", default="ring")
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="CSV file for the results")
    options = parser.parse_args()
    problem = Problem.named(options.shape, options.length, options.pass_name)
    whole = Side(problem, options.method, options.layout, 1, options.threads)
    threads = max(1, options.threads // options.processes)
    sides = [whole, replace(whole, processes=options.processes, threads=threads)]
    origin = provenance() | {"command": " ".join(sys.argv[1:])}
    records = compare(sides, options.rounds, print)
    for record in records:
        print(record)
    if options.output is not None:
        write_records(options.output, origin, records)


if __name__ == "__main__":
    main()
