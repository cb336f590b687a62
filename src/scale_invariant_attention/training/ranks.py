"""The processes that train one model together, as torchrun starts them, or the one that trains alone."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Result = TypeVar("Result")


# How long ranks wait for one of them, which may be evaluating alone.
PATIENCE = timedelta(hours=2)


class FirstRankFailedError(RuntimeError):
    """Rank 0, which alone writes, could not; it says why."""


@dataclass(frozen=True)
class Ranks:
    """How many processes there are, which of them this is, and its device."""

    rank: int
    size: int
    device: torch.device

    def sum(self, *values: float) -> tuple[float, ...]:
        """The sum of each value over all ranks, in float64; all must call this.

        >>> Ranks(0, 1, torch.device("cpu")).sum(0.5, 2)
        (0.5, 2.0)
        """
        if self.size == 1:
            return tuple(map(float, values))
        total: Tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def on_first(self, action: Callable[[], Result]) -> Result | None:
        """Let rank 0 act while the others wait, which get None; if it fails, all fail."""
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
            raise FirstRankFailedError("rank 0 failed, and says why; this rank stops with it")
        return result


def is_first_rank() -> bool:
    """Whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_ranks(device: torch.device | str | None = None) -> Iterator[Ranks]:
    """The ranks of this process group; if torchrun started this process, it joins the others.

    `device` is as for ``find_device``.
    """
    device = find_device(device)
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        return
    size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


def find_device(name: torch.device | str | None = None) -> torch.device:
    """The device of a name; None is a GPU, or the CPU where there is none.

    Of several processes that torchrun started on a machine each gets a GPU of its own.

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
        raise ValueError(
            f"device must be a name such as 'cpu', 'cuda' or 'cuda:1', got {name!r}"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        place = int(os.environ.get("LOCAL_RANK", "0")) if str(device) == "cuda" else device.index
        if place >= count:
            raise ValueError(
                f"device must be one that torch finds here, got {str(device)!r} for GPU {place}, and "
                f"there are {count}; give 'cpu', or start no more processes than there are GPUs"
            )
        device = torch.device("cuda", place)
    return device
