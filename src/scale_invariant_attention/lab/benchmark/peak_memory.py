"""Peak memory of an attention above its inputs, outputs and gradients.

    python -m scale_invariant_attention.lab.benchmark.peak_memory \\
        tiled 6x128 16384 forward+backward float32 1

Measured in a fresh process, without leftovers of earlier work:

1. It makes the inputs and the gradient of the output, and calls the op once on a few tokens, which
   loads libraries, threads and compiled kernels.
2. It fills stand-ins as large as the output and the gradients of the inputs, and reads the resident
   memory: the floor, which every implementation needs.
3. It drops the stand-ins, resets the high-water mark of resident memory, calls the op, keeps what
   it returns, and reads the mark.

The result is mark minus floor: the op's output and gradients cancel against the stand-ins. Scratch
that is freed before the gradients are made does not count: it makes no process larger. The child's
malloc returns every block above 64 KiB to the system as soon as it is freed, so that resident memory is
live memory. Where the mark cannot be reset (outside Linux), it is at the floor anyway.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .problem import Problem, Setting
from .rivals import Attention, rival_named

WARM_UP_LENGTH = 64
PROMPT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_memory(rival: str, problem: Problem) -> int:
    """Bytes above inputs, outputs and gradients of a rival, measured in a fresh process."""
    sizes = (problem.shape, str(problem.length), problem.pass_name)
    words = (*sizes, problem.setting.dtype_name, str(problem.batch))
    child = subprocess.run(  # noqa: S603  this module itself
        [sys.executable, "-m", __name__, rival, *words],
        env=os.environ | PROMPT_MALLOC,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise RuntimeError(
            f"the memory of {rival!r} at {problem} could not be measured: "
            f"exit status {child.returncode}\n{child.stderr}"
        )
    return int(child.stdout)


def peak_memory_on_gpu(run: Callable[[], tuple[Tensor, ...]], device: str) -> int:
    """Bytes above inputs, outputs and gradients of a run on a GPU, which keeps count of them."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    returned = sum(tensor.nbytes for tensor in run())
    return max(0, torch.cuda.max_memory_allocated(device) - before - returned)


def bytes_above_floor(attention: Attention, problem: Problem) -> int:
    """The measurement, for a process that does nothing else."""
    inputs = problem.inputs()
    few = replace(problem, length=min(WARM_UP_LENGTH, problem.length))
    few.run(attention, few.inputs())()
    returned = inputs if problem.backward else (inputs.query,)
    stand_ins = [torch.ones_like(tensor) for tensor in returned]
    floor = status("VmRSS")
    del stand_ins
    reset_mark()
    kept = problem.run(attention, inputs)()
    mark = status("VmHWM")
    del kept
    return max(0, mark - floor)


def status(field: str) -> int:
    """A field of the process status in bytes; without one, the largest resident memory."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    # Not on every system.
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def reset_mark() -> None:
    """Reset the high-water mark of resident memory, where the system can."""
    control = Path("/proc/self/clear_refs")
    if control.exists():
        control.write_text("5")


if __name__ == "__main__":
    name, *sizes, dtype_name, batch = sys.argv[1:]
    problem = replace(
        Problem.named(*sizes), setting=Setting(dtype_name=dtype_name), batch=int(batch)
    )
    print(bytes_above_floor(rival_named(name).attention, problem))
