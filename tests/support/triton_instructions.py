"""Instruction counts of the compiled Triton kernels, as recorded in benchmarks/results.

    python tests/support/triton_instructions.py  # write the CSV and the tables of docs/triton.md
    python tests/support/triton_instructions.py --show sm_100

A row per kernel, target, head size and variant. "plain" is the same kernel without gain and bias.
"""

import csv
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "triton-instructions.csv"
PAGE = ROOT / "docs" / "triton.md"
VERSION = "3.7.1"
MARKS = ("<!-- instructions -->\n", "<!-- end of instructions -->\n")


@dataclass(frozen=True)
class Job:
    """One kernel to compile."""

    target: str
    kernel: str
    size: int
    variant: str  # "plain", "transform", "tau gradient", "tables"


@dataclass(frozen=True)
class Row:
    """Counts of a compiled kernel; clocks per thousand pairs are modelled."""

    target: str
    kernel: str
    size: int
    variant: str
    triton: str
    registers: int
    shared: int
    instructions: int  # of the main loop
    local: int  # of them, loads and stores of spilled registers
    overlapping: float
    in_turn: float

    @property
    def job(self) -> Job:
        return Job(self.target, self.kernel, self.size, self.variant)


TRANSFORMED = [
    Job(target, kernel, size, variant)
    for target in ("sm_80", "sm_90")
    for size in (64, 128)
    for kernel, variant in (
        ("forward", "transform"),
        ("key_gradients", "transform"),
        ("query_gradients", "transform"),
        ("query_gradients", "tau gradient"),
        ("forward", "tables"),
        ("key_gradients", "tables"),
        ("query_gradients", "tables"),
        ("diagonals", "tables"),
        ("split", "transform"),
    )
]
PLAIN = [
    Job(target, kernel, size, "plain")
    for target in ("sm_80", "sm_90")
    for size in (64, 128)
    for kernel in ("forward", "key_gradients", "query_gradients")
]


def measure(job: Job) -> Row:
    """Compile a kernel and count."""
    import compiled_kernels as kernels

    settings = {"tables": job.variant == "tables", "tau_grads": job.variant == "tau gradient"}
    if job.kernel == "split":
        settings |= {"queries": 1, "keys": 4096}
    found = kernels.launches(job.target, job.size, **settings)
    launch = next(launch for launch in found if launch.name == job.kernel)
    if job.variant == "plain":
        with kernels.without_transform():
            compiled = kernels.compiled(launch, job.target)
    else:
        compiled = kernels.compiled(launch, job.target)
    loop = compiled.main_loop
    clocks = (0.0, 0.0)
    if job.target in kernels.RATES and job.kernel in kernels.PRODUCTS:
        pairs = launch.arguments["BLOCK_M"] * launch.arguments["BLOCK_N"]
        products, warps = kernels.tile_products(launch), launch.arguments["num_warps"]
        clocks = tuple(
            round(1000 * number / pairs, 2)
            for number in kernels.model(loop, job.target, products, warps)
        )
    return Row(
        job.target,
        job.kernel,
        job.size,
        job.variant,
        kernels.triton.__version__,
        compiled.registers,
        compiled.shared,
        loop.total(),
        loop["local"],
        *clocks,
    )


def measured(jobs: Iterable[Job], workers: int = 2) -> list[Row]:
    """Compile kernels, several at a time."""
    # Not by forking, which would copy locks that torch's threads hold.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return list(pool.map(measure, jobs))


def recorded() -> list[Row]:
    """The rows of the CSV."""
    kinds = {field.name: field.type for field in fields(Row)}
    with RECORD.open(newline="") as file:
        return [
            Row(**{name: kinds[name](text) for name, text in row.items()})
            for row in csv.DictReader(file)
        ]


def ratios(rows: list[Row]) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Modelled clocks with the transform over those without, overlapping and in turn.

    By target, row of the table and head size. Backward is the sum of the gradients of keys and of
    queries, per pair, without the gradients of tables.
    """
    by_job = {row.job: row for row in rows}
    found = {}
    for target in ("sm_80", "sm_90"):
        for size in (64, 128):
            of = partial(_clocks, by_job, target, size)
            keys, queries = ("key_gradients", "transform"), ("query_gradients", "transform")
            plain = of(("key_gradients", "plain"), ("query_gradients", "plain"))
            found[target, "forward", size] = _over(
                of(("forward", "transform")), of(("forward", "plain"))
            )
            found[target, "backward", size] = _over(of(keys, queries), plain)
            tau = of(keys, ("query_gradients", "tau gradient"))
            found[target, "backward, tau", size] = _over(tau, plain)
            tables = of(("key_gradients", "tables"), ("query_gradients", "tables"))
            found[target, "forward, tables", size] = _over(
                of(("forward", "tables")), of(("forward", "plain"))
            )
            found[target, "backward, tables", size] = _over(tables, plain)
    return found


def _clocks(
    by_job: dict[Job, Row], target: str, size: int, *kernels: tuple[str, str]
) -> tuple[float, float]:
    rows = [by_job[Job(target, kernel, size, variant)] for kernel, variant in kernels]
    return sum(row.overlapping for row in rows), sum(row.in_turn for row in rows)


def _over(some: tuple[float, float], plain: tuple[float, float]) -> tuple[float, float]:
    return some[0] / plain[0], some[1] / plain[1]


def table(rows: list[Row]) -> str:
    """The tables of docs/triton.md."""
    lines = [
        "| kernel | variant | "
        + " | ".join(f"{target}, {size}" for target in ("sm_80", "sm_90") for size in (64, 128))
        + " |",
        "|---|---|---|---|---|---|",
    ]
    by_job = {row.job: row for row in rows}
    kinds = list(dict.fromkeys((row.kernel, row.variant) for row in rows))
    for kernel, variant in sorted(kinds):
        cells = [
            by_job[Job(target, kernel, size, variant)].instructions
            for target in ("sm_80", "sm_90")
            for size in (64, 128)
        ]
        lines.append(f"| `{kernel}` | {variant} | " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "| modelled clocks, with over without the transform | " + lines[0].split(" | ", 2)[2],
        "|---|---|---|---|---|",
    ]
    by_kind = ratios(rows)
    for kind in dict.fromkeys(kind for _, kind, _ in by_kind):
        cells = [
            "{:.2f} / {:.2f}".format(*by_kind[target, kind, size])
            for target in ("sm_80", "sm_90")
            for size in (64, 128)
        ]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Record all counts, or show those of one target."""
    if "--show" in sys.argv:
        target = sys.argv[sys.argv.index("--show") + 1]
        kernels = dict.fromkeys((job.kernel, job.variant, job.size) for job in TRANSFORMED)
        for kernel, variant, size in kernels:
            print(measure(Job(target, kernel, size, variant)), flush=True)
        return
    rows = measured([*PLAIN, *TRANSFORMED])
    with RECORD.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows([getattr(row, field.name) for field in fields(Row)] for row in rows)
    before, after = MARKS
    page = PAGE.read_text()
    PAGE.write_text(
        re.sub(f"{before}.*?{after}", f"{before}\n{table(rows)}\n{after}", page, flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
