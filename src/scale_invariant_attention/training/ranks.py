"""The processes that train one model together, started by torchrun, or the only one; their devices."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from ..arguments import integer
from ..model import ContextParallel

Result = TypeVar("Result")

# How long ranks wait for one that may be evaluating alone.
PATIENCE = timedelta(hours=2)


class FirstRankFailedError(RuntimeError):
    """Rank 0, the only one that writes, failed; its own error says why."""


@dataclass(frozen=True)
class Ranks:
    """This process among all: its rank, their number, and its device.

    With `context_parallel`, `sharing` neighbouring ranks share the rows of a batch, each with a part of
    every row. They form one *reader*: all of them read the same rows, and readers read different ones.
    """

    rank: int
    size: int
    device: torch.device
    sharing: int = 1
    context_parallel: ContextParallel | None = None

    @property
    def reader(self) -> int:
        """Which of the readers this rank belongs to."""
        return self.rank // self.sharing

    @property
    def readers(self) -> int:
        """Number of groups of ranks that read different rows."""
        return self.size // self.sharing

    @property
    def speaks_for_reader(self) -> bool:
        """Whether this is the first rank of its reader, which counts what all of them know."""
        return self.rank % self.sharing == 0

    def sum(self, *values: float) -> tuple[float, ...]:
        """The sum of each value over all ranks, in float64; all ranks must call this.

        >>> Ranks(0, 1, torch.device("cpu")).sum(0.5, 2)
        (0.5, 2.0)
        """
        if self.size == 1:
            return tuple(map(float, values))
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def on_first(self, action: Callable[[], Result]) -> Result | None:
        """Run an action on rank 0 while the others wait; they get None, and fail if it fails."""
        result, failure = None, None
        if self.rank == 0:
            try:
                result = action()
            except Exception as error:
                failure = error
        (failures,) = self.sum(failure is not None)
        if failure is not None:
            raise failure
        if failures:
            raise FirstRankFailedError("rank 0 failed, see its error; this rank stops with it")
        return result


def is_first_rank() -> bool:
    """Whether this process is the one that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_ranks(
    device: torch.device | str | None = None, *, context_parallel: int = 1
) -> Iterator[Ranks]:
    """Open the ranks of this process group, which is created if torchrun started this process.

    `context_parallel` is the number of ranks that share each row.
    """
    device = find_device(device)
    integer("context_parallel", context_parallel, at_least=1)
    if dist.is_available() and dist.is_initialized():
        yield _opened(device, context_parallel)
        return
    size = process_count()
    check_divides(context_parallel, size)
    if size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield _opened(device, context_parallel)
    finally:
        dist.destroy_process_group()


def process_count() -> int:
    """Number of processes that torchrun started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def _opened(device: torch.device, sharing: int) -> Ranks:
    """The ranks of the default group, as a mesh of readers and the ranks that share their rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    check_divides(sharing, size)
    if sharing == 1:
        return Ranks(rank, size, device)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(
        device.type, (size // sharing, sharing), mesh_dim_names=("data", "context")
    )
    return Ranks(rank, size, device, sharing, ContextParallel(mesh.get_group("context")))


def check_divides(context_parallel: int, processes: int) -> None:
    """Raise unless groups of `context_parallel` processes can share rows."""
    if processes % context_parallel:
        started = f"the number of processes, {processes}"
        raise ValueError(
            f"context_parallel must divide {started}, got {context_parallel}; start a multiple of it, "
            f"as with torchrun --nproc-per-node {context_parallel}"
        )


def find_device(name: torch.device | str | None = None) -> torch.device:
    """The device with a name; None means a GPU, or the CPU if there is none.

    Processes that torchrun started on one machine get different GPUs.

    >>> find_device("cpu")
    device(type='cpu')
    >>> find_device("gpu")
    Traceback (most recent call last):
    ValueError: device must be a name such as 'cpu', 'cuda' or 'cuda:1', got 'gpu'
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        right = "a name such as 'cpu', 'cuda' or 'cuda:1'"
        raise ValueError(f"device must be {right}, got {name!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = int(os.environ.get("LOCAL_RANK", "0")) if str(device) == "cuda" else device.index
        if index >= count:
            got = f"{str(device)!r} for GPU {index}, and there are {count}"
            fix = "give 'cpu', or start no more processes than there are GPUs"
            raise ValueError(f"device must be one that torch finds here, got {got}; {fix}")
        device = torch.device("cuda", index)
    return device
