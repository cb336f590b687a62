"""Reads beyond the end of a tensor, in Triton's interpreter: a program for child processes.

    TRITON_INTERPRET=1 python tests/support/triton_out_of_bounds.py STRIDE...

One row stride of a call is one too large, so that the last entry of its second row is outside. The
program prints, for each stride, the error that the checked accesses raise.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from quick_interpreter import hurry
from triton_contracts import poison_around_tensors

import scale_invariant_attention as sia
from scale_invariant_attention.attention import _triton_launch

LENGTH = 40


def outcome() -> str:
    """The error of a call with every kind of integer tensor."""
    query = torch.randn(2, 1, LENGTH, 16)
    rows = torch.arange(LENGTH).expand(2, -1).contiguous()
    try:
        sia.scale_invariant_attention(
            *(query, query, query),
            query_positions=rows,
            key_positions=rows,
            query_documents=rows // 30,
            key_documents=rows // 30,
            key_mask=rows >= 0,
            backend="triton",
        )
    except AssertionError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Run one wrong call per stride."""
    hurry()
    poison_around_tensors()
    launch = _triton_launch.Plan.launch
    for stride in sys.argv[1:]:

        def launch_wrongly(
            self: Any, kernel: Any, grid: tuple[int, ...], stride: str = stride, **arguments: Any
        ) -> None:
            changes = {stride: arguments[stride] + 1} if stride in arguments else {}
            launch(self, kernel, grid, **{**arguments, **changes})

        _triton_launch.Plan.launch = launch_wrongly  # type: ignore[method-assign]
        print(f"{stride}: {outcome()}")


if __name__ == "__main__":
    main()
