"""Messages between ranks: several tensors in one buffer of bytes, sent by one collective."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from ._ranks import Ranks

# In bytes: every tensor of a message starts at a multiple of it.
ALIGNMENT = 16


@dataclass(frozen=True)
class Format:
    """Shapes and dtypes of the tensors in a message."""

    parts: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Format":
        """The format of a message with these tensors."""
        return cls(tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))

    @property
    def nbytes(self) -> int:
        """Length of the message: the tensors, each filled up to a multiple of the alignment."""
        return sum(_room(shape, dtype) for shape, dtype in self.parts)

    def unpack(self, message: Tensor) -> list[Tensor]:
        """The tensors of a message, in its memory."""
        starts = accumulate((_room(*part) for part in self.parts), initial=0)
        parts = zip(starts, self.parts, strict=False)
        return [_part(message, start, shape, dtype) for start, (shape, dtype) in parts]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """A message with copies of tensors."""
    parts = Format.of(tensors)
    message = torch.zeros(parts.nbytes, dtype=torch.uint8, device=tensors[0].device)
    for part, tensor in zip(parts.unpack(message), tensors, strict=True):
        part.copy_(tensor)
    return message


def _part(message: Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if 0 in shape:
        # No bytes, which may begin anywhere.
        return torch.empty(shape, dtype=dtype, device=message.device)
    return message[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


def gather(message: Tensor, ranks: Ranks, sizes: Sequence[int]) -> list[Tensor]:
    """The messages of all ranks, whose `sizes` in bytes may differ."""
    longest = max(sizes)
    sent = message.new_zeros(longest)
    sent[: message.numel()] = message
    everything = message.new_empty(ranks.size * longest)
    ranks.finish(dist.all_gather_single(everything, sent, group=ranks.group, async_op=True))
    rows = everything.view(ranks.size, longest)
    return [row[:size] for row, size in zip(rows, sizes, strict=True)]


def exchange(messages: Sequence[Tensor], ranks: Ranks, sizes: Sequence[int]) -> list[Tensor]:
    """Send each rank its message, and return what they sent: `sizes` in bytes."""
    sent = torch.cat(list(messages))
    received = sent.new_empty(sum(sizes))
    lengths = [message.numel() for message in messages]
    ranks.finish(_all_to_all(received, sent, list(sizes), lengths, ranks))
    return list(received.split_with_sizes(list(sizes)))


@dataclass(frozen=True)
class Incoming:
    """A message under way from the previous rank of the ring, while one is sent to the next."""

    work: dist.Work
    received: Tensor
    ranks: Ranks
    sent: Tensor  # must stay alive until the message has left

    def wait(self) -> Tensor:
        """The message."""
        self.ranks.finish(self.work)
        return self.received


def pass_on(message: Tensor, ranks: Ranks, size: int) -> Incoming:
    """Start to send a message to the next rank and to receive one of `size` bytes from the previous.

    A collective, not a pair of point-to-point messages: a rank that waits for it can notice that another
    one failed, and NCCL needs no connections beyond those of the group.
    """
    lengths, sizes = [0] * ranks.size, [0] * ranks.size
    lengths[(ranks.rank + 1) % ranks.size] = message.numel()
    sizes[(ranks.rank - 1) % ranks.size] = size
    received = message.new_empty(size)
    work = _all_to_all(received, message, sizes, lengths, ranks)
    return Incoming(work, received, ranks, message)


def sum_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum of a tensor over all ranks, in float64, rounded to its dtype."""
    total = tensor.double()
    ranks.finish(dist.all_reduce(total, group=ranks.group, async_op=True))
    return total.to(tensor.dtype)


def _all_to_all(
    received: Tensor, sent: Tensor, sizes: list[int], lengths: list[int], ranks: Ranks
) -> dist.Work:
    work: dist.Work = dist.all_to_all_single(
        received, sent, sizes, lengths, group=ranks.group, async_op=True
    )
    return work
