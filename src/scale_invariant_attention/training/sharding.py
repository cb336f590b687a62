"""A model in parts, one on every rank, and its tensors as wholes where they are saved and loaded.

FSDP2 of torch divides every weight by its first dimension, as a DTensor; the last ranks may have less
of it, or nothing. A block's weights are gathered for its forward and its backward, and forgotten
behind each of them; those of the embedding and the head are gathered for a whole step.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch.distributed as dist
from torch import Tensor

from ..model import GPT
from .ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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
