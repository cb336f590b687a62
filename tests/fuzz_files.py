"""Open damaged files: `make fuzz-files`, `make fuzz-files FILE_CASES=8 FILE_SEED=123`.

Models, checkpoints, shards, records and the like are damaged at random and opened. What is silently
different, or refused with an error that does not name the file, is printed with its seed, and the run
ends with exit code 1.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

AT_ONCE = 50


def examine(kind: str, seeds: range) -> tuple[str, Counter[str], list[str]]:
    """Outcomes and failures of the cases of one kind with these seeds."""
    import torch
    from damaged_files import examine, failed

    torch.set_num_threads(1)
    cases = [examine(kind, _prepared(kind), seed) for seed in seeds]
    return kind, Counter(case.outcome for case in cases), [str(it) for it in cases if failed(it)]


_OPEN = ExitStack()
_READY = {}


def _prepared(kind):
    """The files of a kind, made once per process."""
    from damaged_files import prepared

    if kind not in _READY:
        folder = Path(_OPEN.enter_context(tempfile.TemporaryDirectory()))
        _READY[kind] = _OPEN.enter_context(prepared(kind, folder))
        # Workers end without clearing up after themselves otherwise.
        multiprocessing.util.Finalize(None, _OPEN.close, exitpriority=1)
    return _READY[kind]


def main() -> int:
    from damaged_files import KINDS, Outcome

    from scale_invariant_attention.provenance import provenance

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind of file")
    parser.add_argument("--record", type=Path, help="JSON file to record the outcome in")
    options = parser.parse_args()
    before = provenance()

    kinds = [options.kind] if options.kind else list(KINDS)
    of_each = -(-options.cases // len(kinds))
    end = options.seed + of_each
    started, found = time.monotonic(), []
    outcomes = {kind: Counter() for kind in kinds}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        batches = [
            (kind, range(first, min(first + AT_ONCE, end)))
            for kind in kinds
            for first in range(options.seed, end, AT_ONCE)
        ]
        for kind, counts, failures in pool.map(examine, *zip(*batches, strict=True)):
            outcomes[kind] += counts
            for failure in failures:
                print(failure, flush=True)
            found += failures
    for kind, counts in outcomes.items():
        shown = ", ".join(f"{counts[it]:,} {it}" for it in Outcome)
        print(f"{kind}: {shown}")
    seconds = round(time.monotonic() - started)
    print(f"{of_each * len(kinds):,} cases in {seconds} s, {len(found)} failures")
    if options.record:
        from fuzz_records import record

        by_kind = {
            kind: {str(it): counts[it] for it in Outcome} for kind, counts in outcomes.items()
        }
        record(
            options.record,
            "files",
            before,
            cases=of_each * len(kinds),
            first_seed=options.seed,
            outcomes=by_kind,
            seconds=seconds,
            failures=len(found),
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
