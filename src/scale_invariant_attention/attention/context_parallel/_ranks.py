"""The ranks of a process group, and the end of waiting for one that fails.

With gloo, a rank that waits looks twice a second for news of a failure, which ranks leave in the store
of the process group, so that all of them stop with an error that names the cause. Other backends, such
as NCCL, end processes by their own watchdog after the timeout of the group.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

GLANCE = timedelta(seconds=0.5)
# How long to collect reports after a failure. A rank that waits reports after one glance.
GRACE = timedelta(seconds=3)
KEY = "scale_invariant_attention/failure"


class RankFailedError(RuntimeError):
    """Another rank ended, raised or hung; the error names it."""


@dataclass(frozen=True)
class Ranks:
    """A process group, and this process in it."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of_group(cls, group: dist.ProcessGroup | None) -> "Ranks":
        """The ranks of a group; None is the default group."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "there is no process group: start the processes with torchrun, and call "
                "torch.distributed.init_process_group() first"
            )
        group = group or dist.group.WORLD
        assert group is not None
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("group must be one that this process belongs to")
        return cls(group, rank, dist.get_world_size(group))

    @property
    def control_device(self) -> torch.device:
        """Where small messages travel: the CPU if the group connects CPUs, so that no GPU waits."""
        devices = self.group._device_types
        cpu = torch.device("cpu")
        return cpu if cpu in devices else torch.device(devices[0].type, torch.cuda.current_device())

    def finish(self, work: dist.Work) -> None:
        """Wait for a message; raises :class:`RankFailedError` if a rank failed."""
        if not dist.get_backend(self.group).startswith("gloo"):
            work.wait()
            return
        while True:
            try:
                # After a timeout of its own, the message remains under way.
                work.wait(timedelta(0) if work.is_completed() else GLANCE)
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise self._failure(str(error)) from error
                if _store().check([f"{self._key}/any"]):
                    raise self._failure("another rank reported a failure") from error

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report an error of this rank to the others, so that they stop too."""
        try:
            yield
        except RankFailedError:
            raise
        except Exception as error:
            try:
                self._report(f"raised {type(error).__name__}: {error}")
            except RuntimeError as unreachable:
                error.add_note(f"it could not be reported to other ranks: {unreachable}")
            raise

    def named(self, rank: int) -> str:
        """A rank as errors name it."""
        everywhere = dist.get_global_rank(self.group, rank)
        return f"rank {rank}" if everywhere == rank else f"rank {rank} (globally {everywhere})"

    @property
    def _key(self) -> str:
        return f"{KEY}/{self.group.group_name}"

    def _report(self, state: str) -> None:
        store = _store()
        store.set(f"{self._key}/{self.rank}", state)
        store.set(f"{self._key}/any", "")

    def _failure(self, observed: str) -> RankFailedError:
        """The error to raise when a message failed: collects the reports of the other ranks."""
        try:
            self._report("waits")
            blamed = self._blamed()
        except RuntimeError as error:
            # torchrun keeps the store; without it, a thread of rank 0 does.
            blamed = f"rank 0, or whichever process keeps the store of the group, ended: {error}"
        return RankFailedError(f"{blamed}\nrank {self.rank} stops with it; it saw: {observed}")

    def _blamed(self) -> str:
        store, deadline = _store(), time.monotonic() + GRACE.total_seconds()
        silent = [rank for rank in range(self.size) if rank != self.rank]
        while True:
            for rank in list(silent):
                if store.check([f"{self._key}/{rank}"]):
                    silent.remove(rank)
                    state = store.get(f"{self._key}/{rank}").decode()
                    if state != "waits":
                        return f"{self.named(rank)} {state}"
            if not silent:
                return "a message failed, though every rank still answers"
            if time.monotonic() > deadline:
                names = ", ".join(map(self.named, silent))
                return f"{names} ended or hangs: no answer within {GRACE.total_seconds():g} s"
            time.sleep(0.05)


def _store() -> torch._C._distributed_c10d.Store:
    return dist.distributed_c10d._get_default_store()
