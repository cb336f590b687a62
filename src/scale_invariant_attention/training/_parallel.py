"""Distribution of the model over ranks: one process, a copy per rank, or a part per rank.

Parts are made by torch's FSDP2, which shards every weight along its first dimension, as a DTensor; the
last ranks may hold less, or nothing. A block's weights are gathered for its forward and its backward
pass and freed after each; those of embedding and head stay gathered for a whole step.
"""

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
    """One process holds the whole `model`, which validation calls; training steps call `called`."""

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        self.model = self._placed(model, ranks)
        self.called = cast(nn.Module, torch.compile(self.model)) if compiled else self.model

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        return model.to(ranks.device)

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Context for a part of a batch, in which ranks exchange gradients if need be."""
        return nullcontext()

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """The whole model after training, which has been saved in the folder `saved`."""
        return self.model

    def leave(self) -> None:
        """Release what must not outlive the process group."""


class Replicated(Alone):
    """Every rank holds a copy of the model, and ranks exchange gradients."""

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        super().__init__(model, ranks, compiled=compiled)
        self._wrapper = DistributedDataParallel(self.called)
        self.called = self._wrapper

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Exchange once per step, with the last part of the batch."""
        return nullcontext() if last else self._wrapper.no_sync()

    def leave(self) -> None:
        """Drop the wrapper, whose destructor would hold the lock that the group's threads wait for."""
        del self._wrapper
        self.called = self.model
        gc.collect()


class Sharded(Alone):
    """Every rank holds a part of each weight, its gradient and its optimiser state.

    Gradients are exchanged with every part of a batch, so that no rank has to hold all of them.
    """

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(ranks.device.type, (ranks.size,))
        # Block by block, so that no device has to hold the whole model.
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """Read the model from its folder to the CPU: a device may have no room for it."""
        backend, checkpointing = self.model.backend, self.model.checkpoint_activations
        return GPT.from_pretrained(saved, backend=backend, checkpoint_activations=checkpointing)


# What each of several ranks may hold.
PARALLEL: dict[str, type[Alone]] = {"replicate": Replicated, "shard": Sharded}


def hold_model(model: GPT, ranks: Ranks, parallel: str, *, compiled: bool) -> Alone:
    """Move a model, the same on all ranks, to where they train it; `parallel` is for several ranks."""
    held = Alone if ranks.size == 1 else PARALLEL[parallel]
    return held(model, ranks, compiled=compiled)


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this rank holds only a part of a tensor."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; if it is sharded it is gathered, and all ranks must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this rank holds of `like`, without communication."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every rank cuts its own copy; given a source rank, torch would send that one's to all.
    mesh, layout = like.device_mesh, like.placements
    return cast(Tensor, distribute_tensor(tensor.to(like.device), mesh, layout, src_data_rank=None))


def whole_on_first(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors on rank 0, sharded ones on its CPU, and none on other ranks; all must call this.

    They are gathered one by one: a device has room for one of them, not for all.
    """
    collected = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if ranks.rank == 0:
            collected[name] = gathered.cpu() if is_sharded(tensor) else gathered
    return collected


def load_whole(model: GPT, tensors: Mapping[str, Tensor]) -> None:
    """Load whole weights as ``load_state_dict`` does, also into a sharded model."""
    own = model.state_dict()
    parts = {name: part_like(tensor, own.get(name, tensor)) for name, tensor in tensors.items()}
    model.load_state_dict(parts)
