"""How much memory an attention needs above its inputs, outputs and gradients.

    python benchmarks/peak_memory.py tiled 6 16384 128

A fresh process measures, so that nothing earlier has left memory behind:

1. It makes the inputs and the gradient of the output, and calls the op once on a few tokens, so
   that libraries, threads and compiled kernels are there.
2. It fills stand-ins as large as the output and the gradients of the inputs, and reads the resident
   memory: the floor, which every implementation needs.
3. It drops the stand-ins, resets the high-water mark of resident memory, calls the op, keeps what
   it returns, and reads the mark.

The result is mark minus floor: the op's own output and gradients cancel against the stand-ins, and
only what it holds beyond them counts. Scratch that is gone before the gradients are made can hide
in their place, as it should: it makes no process larger. The child's malloc returns every block
above 64 KiB to the system as soon as it is freed, so that resident memory is live memory. Where the
mark cannot be reset (outside Linux), it stands at the floor anyway: nothing before was larger.
"""

import os
import resource
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

WARM_UP_LENGTH = 64
PROMPT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_memory(backend: str, heads: int, length: int, head_dim: int, backward: bool = True) -> int:
    """Bytes above inputs, outputs and gradients of a rival by name, measured in a fresh process.

    Causal self-attention on float32 ``[1, heads, length, head_dim]``; without `backward` there are
    no gradients, and nothing is kept for them.
    """
    command = [sys.executable, __file__, backend, str(heads), str(length), str(head_dim)]
    command += [] if backward else ["--forward"]
    child = subprocess.run(
        command, env=os.environ | PROMPT_MALLOC, capture_output=True, text=True, check=False
    )
    if child.returncode != 0:
        raise RuntimeError(
            f"the memory of {backend!r} at {heads} x {length} x {head_dim} could not be measured: "
            f"exit status {child.returncode}\n{child.stderr}"
        )
    return int(child.stdout)


def bytes_above_floor(
    attention: Callable[[Tensor, Tensor, Tensor], Tensor],
    heads: int,
    length: int,
    head_dim: int,
    backward: bool = True,
) -> int:
    """The measurement itself, for a process that does nothing else."""

    def results(inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
        if not backward:
            with torch.no_grad():
                return (attention(*inputs),)
        out = attention(*inputs)
        return out, *torch.autograd.grad(out, inputs, grad)

    def tensors(length: int) -> list[Tensor]:
        return [torch.randn(1, heads, length, head_dim, requires_grad=backward) for _ in range(3)]

    inputs = tensors(length)
    grad = torch.randn(1, heads, length, head_dim)
    few = min(WARM_UP_LENGTH, length)
    results(tensors(few), grad[:, :, :few])
    stand_ins = [torch.ones_like(grad) for _ in range(4 if backward else 1)]
    floor = _status("VmRSS")
    del stand_ins
    _reset_mark()
    kept = results(inputs, grad)
    mark = _status("VmHWM")
    del kept
    return max(0, mark - floor)


def _status(field: str) -> int:
    """A field of the process status in bytes; the largest resident memory where there is none."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def _reset_mark() -> None:
    control = Path("/proc/self/clear_refs")
    if control.exists():
        control.write_text("5")


if __name__ == "__main__":
    from rivals import rivals

    parser = ArgumentParser(description="Print the bytes a rival needs above its tensors.")
    parser.add_argument("rival", choices=rivals())
    parser.add_argument("heads", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("head_dim", type=int)
    parser.add_argument("--forward", action="store_true", help="without gradients")
    options = parser.parse_args()
    sizes = (options.heads, options.length, options.head_dim)
    attention = rivals()[options.rival].attention
    print(bytes_above_floor(attention, *sizes, backward=not options.forward))
