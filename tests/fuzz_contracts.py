"""Run random contracts: `make fuzz`, `make fuzz SECONDS=600`, `make fuzz CASES=1 SEED=123`.

A failing contract is printed with its seed, and the run ends with exit code 1.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

AT_ONCE = 50


def examine(
    seeds: range, threads: int | None, instruction_set: str | None, dtype: str | None
) -> list[str]:
    import torch
    from contract_checks import failures
    from random_contracts import draw

    from scale_invariant_attention.attention.cpu_library import LIBRARY, using_instruction_set

    torch.set_num_threads(threads or 1)
    if threads and LIBRARY:
        # The thread sanitizer cannot follow how OpenMP threads wait for each other.
        LIBRARY.sia_set_parallel(None)
    dtypes = (getattr(torch, dtype),) if dtype else None
    found = []
    with using_instruction_set(instruction_set) if instruction_set else nullcontext():
        for seed in seeds:
            contract = draw(seed, dtypes)
            found += [f"{contract}\n    {failure}" for failure in failures(contract)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="maximum number of contracts")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit")
    parser.add_argument("--seed", type=int, default=1_000_000, help="the first seed")
    parser.add_argument(
        "--threads", type=int, help="threads that the kernels start themselves per call"
    )
    parser.add_argument(
        "--instruction-set", help="instruction set of the kernels; default: the best one"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16", "float16"),
        help="dtype of all contracts; default: drawn",
    )
    parser.add_argument("--record", type=Path, help="JSON file to record the outcome in")
    parser.add_argument("--name", default="contracts", help="name of the record")
    options = parser.parse_args()
    if options.record:
        from scale_invariant_attention.provenance import provenance

        before = provenance()

    end = options.seed + options.cases
    batches = (range(s, min(s + AT_ONCE, end)) for s in range(options.seed, end, AT_ONCE))
    workers = os.cpu_count() or 1
    started, done, found = time.monotonic(), 0, []
    with ProcessPoolExecutor(workers) as pool:
        running = {}
        while True:
            while len(running) < 2 * workers and time.monotonic() - started < options.seconds:
                seeds = next(batches, None)
                if seeds is None:
                    break
                future = pool.submit(
                    examine, seeds, options.threads, options.instruction_set, options.dtype
                )
                running[future] = seeds
            if not running:
                break
            future = next(iter(running))
            found_here = future.result()
            done += len(running.pop(future))
            for failure in found_here:
                print(failure, flush=True)
            found += found_here
            if sys.stdout.isatty():
                print(f"\r{done} contracts, {len(found)} failures", end="", flush=True)
    seconds = round(time.monotonic() - started)
    print(f"\r{done} contracts in {seconds} s, {len(found)} failures")
    if options.record:
        from fuzz_records import record

        from scale_invariant_attention.attention.cpu_library import instruction_set

        record(
            options.record,
            options.name,
            before,
            cases=done,
            first_seed=options.seed,
            instruction_set=options.instruction_set or instruction_set(),
            dtype=options.dtype or "drawn",
            seconds=seconds,
            failures=len(found),
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
