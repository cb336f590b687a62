"""Random contracts without end: `make fuzz`, `make fuzz SECONDS=600`, `make fuzz CASES=1 SEED=123`.

A failing contract is printed with its seed, and the run ends with exit code 1.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

AT_ONCE = 50


def examine(seeds: range) -> list[str]:
    import torch
    from contract_checks import failures
    from random_contracts import draw

    torch.set_num_threads(1)
    found = []
    for seed in seeds:
        contract = draw(seed)
        found += [f"{contract}\n    {failure}" for failure in failures(contract)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many to draw at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop drawing")
    parser.add_argument("--seed", type=int, default=1_000_000, help="the first seed")
    options = parser.parse_args()

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
                running[pool.submit(examine, seeds)] = seeds
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
    print(f"\r{done} contracts in {time.monotonic() - started:.0f} s, {len(found)} failures")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
