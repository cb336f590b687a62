"""Layouts: which part of a sequence each rank holds, as a type that travels with the data.

The sequence is cut into chunks whose lengths differ by at most one. In a *contiguous* layout rank r of n
holds chunk r of n. In a *zigzag* layout it holds the chunks r and 2n - 1 - r of 2n: an early and a late
one, so that all ranks have the same share of the causal triangle.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..numerics import compute_dtype
from ._agreement import agree
from ._messages import Format, exchange, gather, pack
from ._ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# The chunks of a rank among all chunks, by kind of layout.
_CHUNKS: dict[str, tuple[int, Callable[[int, int], tuple[int, ...]]]] = {
    "contiguous": (1, lambda rank, ranks: (rank,)),
    "zigzag": (2, lambda rank, ranks: (rank, 2 * ranks - 1 - rank)),
}


@dataclass(frozen=True)
class SequenceLayout:
    """The part of a sequence of `length` tokens that `rank` of `ranks` holds.

    >>> SequenceLayout(length=10, ranks=2, rank=0).chunks
    (range(0, 3), range(8, 10))
    >>> SequenceLayout(length=10, ranks=2, rank=1).positions()
    tensor([3, 4, 5, 6, 7])
    """

    length: int
    ranks: int
    rank: int
    kind: str = "zigzag"

    def __post_init__(self) -> None:
        for name, least in (("length", 0), ("ranks", 1), ("rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.rank >= self.ranks:
            raise ValueError(f"rank must be below ranks = {self.ranks}, got {self.rank}")
        if self.kind not in _CHUNKS:
            known = " or ".join(map(repr, _CHUNKS))
            raise ValueError(f"kind must be {known}, got {self.kind!r}")

    @classmethod
    def of_group(
        cls, length: int, group: "ProcessGroup | None" = None, *, kind: str = "zigzag"
    ) -> "SequenceLayout":
        """The layout of this process in a group; None is the default group."""
        ranks = Ranks.of_group(group)
        return cls(length, ranks.size, ranks.rank, kind)

    def of_rank(self, rank: int) -> "SequenceLayout":
        """The same layout for another rank."""
        return replace(self, rank=rank)

    @property
    def chunks(self) -> tuple[range, ...]:
        """The contiguous ranges of indices that this rank holds, in the order in which it holds them."""
        per_rank, chosen = _CHUNKS[self.kind]
        count = per_rank * self.ranks
        return tuple(
            range(_start(self.length, count, index), _start(self.length, count, index + 1))
            for index in chosen(self.rank, self.ranks)
        )

    @property
    def local_length(self) -> int:
        """Number of tokens that this rank holds."""
        return sum(map(len, self.chunks))

    def positions(self, device: torch.device | str | None = None) -> Tensor:
        """The indices that this rank holds, ``[local_length]``."""
        return torch.cat(
            [torch.arange(chunk.start, chunk.stop, device=device) for chunk in self.chunks]
        )

    def check_group(self, ranks: Ranks) -> None:
        """Raise unless the layout is that of this process in its group."""
        if (self.rank, self.ranks) != (ranks.rank, ranks.size):
            raise ValueError(
                f"layout is that of rank {self.rank} of {self.ranks}, but this process is rank "
                f"{ranks.rank} of {ranks.size} in the group: use SequenceLayout.of_group"
            )


def _start(length: int, chunks: int, index: int) -> int:
    """Where a chunk starts; the first ``length % chunks`` chunks are longer by one."""
    return length // chunks * index + min(index, length % chunks)


@dataclass(frozen=True, eq=False)
class SequenceShard:
    """One rank's part of a tensor, and the layout by which it was cut along dimension `dim`."""

    tensor: Tensor
    layout: SequenceLayout
    dim: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor):
            raise TypeError(f"tensor must be a tensor, got {type(self.tensor).__name__}")
        _check_length("tensor", self.tensor, self.dim, self.layout.local_length)

    @property
    def positions(self) -> Tensor:
        """The indices of this part in the whole sequence, ``[local_length]``."""
        return self.layout.positions(self.tensor.device)

    def with_tensor(self, tensor: Tensor, dim: int | None = None) -> "SequenceShard":
        """Another tensor for the same tokens, such as the output of a model."""
        return SequenceShard(tensor, self.layout, self.dim if dim is None else dim)


def shard_sequence(tensor: Tensor, layout: SequenceLayout, dim: int = 1) -> SequenceShard:
    """Cut this rank's part out of a whole tensor; differentiable.

    Positions and documents are cut in the same way, along their last dimension.

    >>> layout = SequenceLayout(length=6, ranks=2, rank=1, kind="contiguous")
    >>> shard_sequence(torch.arange(6), layout, dim=0).tensor
    tensor([3, 4, 5])
    """
    if not isinstance(layout, SequenceLayout):
        raise TypeError(f"layout must be a SequenceLayout, got {type(layout).__name__}")
    _check_length("tensor", tensor, dim, layout.length)
    parts = [tensor.narrow(dim, chunk.start, len(chunk)) for chunk in layout.chunks]
    return SequenceShard(torch.cat(parts, dim), layout, dim)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it communicates
def unshard_sequence(shard: SequenceShard, group: "ProcessGroup | None" = None) -> Tensor:
    """The whole tensor, on every rank, in the order of the sequence: the inverse of `shard_sequence`.

    All ranks must call it, with parts of one layout. Differentiable: each rank's part gets the sum of
    what all ranks pass back for it, in the order of the ranks.
    """
    ranks = Ranks.of_group(group)
    with agree(ranks, "unshard_sequence") as agreement:
        if not isinstance(shard, SequenceShard):
            raise TypeError(
                f"shard must be a SequenceShard, as shard_sequence returns it, "
                f"got {type(shard).__name__}"
            )
        layout, tensor = shard.layout, shard.tensor
        layout.check_group(ranks)
        dim = shard.dim % tensor.ndim
        others = [size for axis, size in enumerate(tensor.shape) if axis != dim]
        agreement.fields = {
            "layout": f"{layout.kind} of {layout.length} tokens over {layout.ranks} ranks",
            "dim": dim,
            "the other dimensions": others,
            "dtype": tensor.dtype,
            "gradients": torch.is_grad_enabled() and tensor.requires_grad,
        }
    whole: Tensor = _Unshard.apply(tensor, layout, dim, ranks)  # type: ignore[no-untyped-call]
    return whole


class _Unshard(torch.autograd.Function):
    """All-gather in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: SequenceLayout, dim: int, ranks: Ranks) -> Tensor:
        ctx.layout, ctx.dim, ctx.ranks = layout, dim, ranks
        layouts = [layout.of_rank(rank) for rank in range(ranks.size)]
        formats = [Format(((_local_shape(tensor, it, dim), tensor.dtype),)) for it in layouts]
        messages = gather(pack([tensor]), ranks, [it.nbytes for it in formats])
        chunks: list[tuple[range, Tensor]] = []
        for message, form, part in zip(messages, formats, layouts, strict=True):
            pieces = form.unpack(message)[0].split_with_sizes([len(it) for it in part.chunks], dim)
            chunks += zip(part.chunks, pieces, strict=True)
        # An empty chunk starts where another one does; their order does not matter.
        return torch.cat([piece for _, piece in sorted(chunks, key=lambda it: it[0].start)], dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        ranks, layout = ctx.ranks, ctx.layout
        layouts = [layout.of_rank(rank) for rank in range(ranks.size)]
        parts = [shard_sequence(grad, it, ctx.dim).tensor for it in layouts]
        form = Format.of([parts[ranks.rank]])
        received = exchange([pack([part]) for part in parts], ranks, [form.nbytes] * ranks.size)
        total = parts[ranks.rank].new_zeros((), dtype=compute_dtype(grad.dtype))
        for message in received:
            total = total + form.unpack(message)[0]
        return total.to(grad.dtype), None, None, None


def _local_shape(tensor: Tensor, layout: SequenceLayout, dim: int) -> tuple[int, ...]:
    return (*tensor.shape[:dim], layout.local_length, *tensor.shape[dim + 1 :])


def _check_length(name: str, tensor: Tensor, dim: int, length: int) -> None:
    if not -tensor.ndim <= dim < tensor.ndim:
        raise ValueError(f"dim must be a dimension of {tuple(tensor.shape)}, got {dim}")
    if tensor.shape[dim] != length:
        raise ValueError(
            f"{name} must have length {length} along dim {dim} by its layout, "
            f"got shape {tuple(tensor.shape)}"
        )
