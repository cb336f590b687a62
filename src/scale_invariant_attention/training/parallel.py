"""How the ranks hold the model that they train: one alone, each a copy, or each a part."""

import gc
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..model import GPT
from .ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Alone:
    """One process has the whole model.

    `model` has the parameters and is what validation calls; `called` is what a step calls.
    """

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        self.model = self._placed(model, ranks)
        self.called: nn.Module = self.model
        if compiled:
            self.called = cast(nn.Module, torch.compile(self.model))

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        return model.to(ranks.device)

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """For a part of a batch, the last of them or not: whether ranks exchange its gradients."""
        return nullcontext()

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """The whole model, once it is trained and `saved` is its folder."""
        return self.model

    def leave(self) -> None:
        """Let go of what may not outlive the process group."""


class Replicated(Alone):
    """Every rank has a copy of the model, and they exchange gradients."""

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        super().__init__(model, ranks, compiled=compiled)
        self._wrapper = DistributedDataParallel(self.called)
        self.called = self._wrapper

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Once a step, with the last of its parts."""
        return nullcontext() if last else self._wrapper.no_sync()

    def leave(self) -> None:
        """Drop the wrapper, whose destructor would deadlock.

        It would destroy the group while it holds Python's lock, for which threads of the group wait.
        """
        del self._wrapper
        self.called = self.model
        gc.collect()


class Sharded(Alone):
    """Every rank has a part of each weight, and of its gradient and of the optimisers' state.

    Gradients are exchanged with every part of a batch: to wait for the last, each rank would have to
    hold all of them.
    """

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        shard(model, ranks)
        return model

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """Read from its folder, to the CPU: a device may have no room for it."""
        return GPT.from_pretrained(
            saved,
            backend=self.model.backend,
            checkpoint_activations=self.model.checkpoint_activations,
        )


# What each of several ranks may have.
PARALLEL: dict[str, type[Alone]] = {"replicate": Replicated, "shard": Sharded}


def hold_model(model: GPT, ranks: Ranks, parallel: str, *, compiled: bool) -> Alone:
    """Bring a model, which is the same on all ranks, to where they train it.

    `parallel` is one of ``PARALLEL``; for one rank alone it does not matter.
    """
    held = Alone if ranks.size == 1 else PARALLEL[parallel]
    return held(model, ranks, compiled=compiled)


def shard(model: GPT, ranks: Ranks) -> None:
    """Leave each rank its part of the weights, on its device; all must call this with the same model.

    Block after block, so that no device has to hold the whole.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this rank has but a part of a tensor."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from its parts if it has parts; then all ranks must call this."""
    if not is_sharded(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()
    return gathered


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor what a rank has of `like`: all of it, or its part; nothing is exchanged."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every rank cuts its own copy: with a source, that rank's would be sent to all.
    part: Tensor = distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
    return part


def whole_on_first(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """All of many tensors on rank 0, those with parts on its CPU, and none on others; all must call.

    They are gathered one after the other: a device has room for one of them, not for all.
    """
    found = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if ranks.rank == 0:
            found[name] = gathered.cpu() if is_sharded(tensor) else gathered
    return found


def load_whole(model: GPT, tensors: Mapping[str, Tensor]) -> None:
    """Load weights as ``load_state_dict`` does, also where the model has but a part of each."""
    own = model.state_dict()
    model.load_state_dict(
        {
            name: part_like(tensor, own[name]) if name in own else tensor
            for name, tensor in tensors.items()
        }
    )
