"""Instruction counts of the compiled Triton kernels, as recorded in benchmarks/results.

    python tests/support/triton_instructions.py  # write the CSV and the tables of docs/triton.md
    python tests/support/triton_instructions.py --show sm_100

A row per kernel, target, head size and variant. "plain" is the same kernel without gain and bias.
The other variants are calls with these arguments, in bfloat16 unless they say otherwise.
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
    variant: str  # of VARIANTS


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
    masked_local: int  # such loads and stores in the loop with masks
    overlapping: float
    in_turn: float

    @property
    def job(self) -> Job:
        return Job(self.target, self.kernel, self.size, self.variant)


VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "transform": {},
    "tau gradient": {"tau_grads": True},
    "tables": {"tables": True},
    "not causal": {"is_causal": False},
    "window": {"window": 200},
    "documents": {"documents": True},
    "key mask, window, sinks": {"key_mask": True, "window": 200, "sinks": 4},
    "key bias": {"key_bias": True},
    "key bias, tables": {"key_bias": True, "tables": True},
    "key bias, positions, tables": {"key_bias": True, "positions": True, "tables": True},
    "positions": {"positions": True, "tau_grads": True},
    "positions, tables": {"positions": True, "tables": True},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "4 rows": {"queries": 1, "keys": 4096},
    "64 rows": {"queries": 16, "keys": 4096},
    "128 rows": {"queries": 32, "keys": 4096},
    "128 rows, key bias": {"queries": 32, "keys": 4096, "key_bias": True},
}
MAIN = ("forward", "key_gradients", "query_gradients")
MASKED = ("not causal", "window", "documents", "key mask, window, sinks")
PLACES = [(target, size) for target in ("sm_80", "sm_90") for size in (64, 128)]


def _jobs(*kinds: tuple[str, str]) -> list[Job]:
    return [
        Job(target, kernel, size, variant) for target, size in PLACES for kernel, variant in kinds
    ]


# The kernels that the modelled ratios are computed from.
RATIO = _jobs(
    *((kernel, variant) for variant in ("plain", "transform", "tables") for kernel in MAIN),
    ("query_gradients", "tau gradient"),
)
OTHERS = _jobs(
    *(
        (kernel, variant)
        for variant in (*MASKED, "key bias", "positions", "positions, tables")
        for kernel in MAIN
    ),
    ("diagonals", "tables"),
    ("distances", "positions, tables"),
    ("diagonals", "key bias, tables"),
    ("distances", "key bias, positions, tables"),
    ("forward", "float16"),
    ("forward", "float32"),
    *(("split", rows) for rows in ("4 rows", "64 rows", "128 rows", "128 rows, key bias")),
)
EVERY = [*RATIO, *OTHERS]
# A choice for `make test`: the ratios, and the variants where registers are scarcest.
SOME = [*RATIO, *(job for job in OTHERS if (job.target, job.size) == ("sm_90", 128))]


def measure(job: Job) -> Row:
    """Compile a kernel and count."""
    import compiled_kernels as kernels

    settings = dict(VARIANTS[job.variant])
    if "dtype" in settings:
        settings["dtype"] = getattr(kernels.torch, settings["dtype"])
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
        sum(other["local"] for other in compiled.loops) - loop["local"],
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
    by_job = {row.job: row for row in rows}
    kinds = sorted(dict.fromkeys((row.kernel, row.variant) for row in rows))
    counts = {
        f"`{kernel}`, {variant}": [
            by_job[Job(target, kernel, size, variant)] for target, size in PLACES
        ]
        for kernel, variant in kinds
    }
    by_kind = ratios(rows)
    modelled = {
        kind: ["{:.2f} / {:.2f}".format(*by_kind[target, kind, size]) for target, size in PLACES]
        for kind in dict.fromkeys(kind for _, kind, _ in by_kind)
    }
    return "\n".join(
        (
            _grid(
                "instructions",
                {kind: [row.instructions for row in cells] for kind, cells in counts.items()},
            ),
            _grid("modelled clocks, with over without the transform", modelled),
            _grid(
                "spilled registers, loop with masks",
                {
                    kind: [row.masked_local for row in cells]
                    for kind, cells in counts.items()
                    if any(row.masked_local for row in cells)
                },
            ),
        )
    )


def _grid(title: str, rows: dict[str, list[object]]) -> str:
    head = [title, *(f"{target}, {size}" for target, size in PLACES)]
    lines = [head, ["---"] * len(head), *([kind, *cells] for kind, cells in rows.items())]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def main() -> None:
    """Record all counts, or show those of one target."""
    if "--show" in sys.argv:
        target = sys.argv[sys.argv.index("--show") + 1]
        kernels = dict.fromkeys((job.kernel, job.variant, job.size) for job in EVERY)
        for kernel, variant, size in kernels:
            print(measure(Job(target, kernel, size, variant)), flush=True)
        return
    rows = measured(EVERY)
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
