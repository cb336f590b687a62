"""Rows of a batch that several ranks share, each of which holds a part of every row."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..attention import DistanceAffine, Visibility
from ..attention.context_parallel import (
    SequenceLayout,
    SequenceShard,
    context_parallel_attention,
    shard_sequence,
    unshard_sequence,
)
from ..attention.context_parallel.api import METHODS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class ContextParallel:
    """How the ranks of a process group share the rows of a call.

    `group` None is the default group; `method` is that of ``context_parallel_attention``, and `kind`
    that of ``SequenceLayout``. After backward each rank has its own part of every gradient: their sum
    over the ranks is the gradient of the sum of the ranks' losses.
    """

    group: "ProcessGroup | None" = None
    method: str = "ring"
    kind: str = "zigzag"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")

    def rows(self, length: int) -> "SharedRows":
        """Rows of `length` tokens, shared by the ranks."""
        return SharedRows(self, SequenceLayout.of_group(length, self.group, kind=self.kind))

    def part(self, rows: Tensor) -> Tensor:
        """This rank's part of whole rows ``[B, L]``."""
        return self.rows(rows.shape[1]).part(rows)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Rows of one length, cut over the ranks by a layout."""

    ranks: ContextParallel
    layout: SequenceLayout

    def part(self, rows: Tensor) -> Tensor:
        """This rank's part of whole rows ``[..., L]``."""
        return shard_sequence(rows, self.layout, dim=-1).tensor

    def whole(self, part: Tensor) -> Tensor:
        """The whole rows ``[..., L]`` that the ranks' parts make up; all ranks must call this."""
        rows: Tensor = unshard_sequence(SequenceShard(part, self.layout, dim=-1), self.ranks.group)
        return rows

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        affine: DistanceAffine | None,
        tau: float | Tensor | None,
        visibility: Visibility,
        **settings: Any,
    ) -> Any:
        """Attention of this rank's queries to the keys of all ranks, with the arguments of the op."""
        # Every rank gets the whole gradient of tables and tau, and holds one part of it, as of others.
        if affine is not None:
            tables = (_share(table, self.layout.ranks) for table in (affine.gain, affine.bias))
            affine = DistanceAffine(*tables)
        elif isinstance(tau, Tensor):
            tau = _share(tau, self.layout.ranks)
        return context_parallel_attention(
            query,
            key,
            value,
            affine=affine,
            tau=10.0 if tau is None else tau,
            layout=self.layout,
            method=self.ranks.method,
            group=self.ranks.group,
            **{field.name: getattr(visibility, field.name) for field in fields(visibility)},
            **settings,
        )


class WholeLosses:
    """A model whose losses are those of whole rows on every rank, as evaluations call it."""

    def __init__(self, model: Callable[..., Tensor], ranks: ContextParallel) -> None:
        self.model = model
        self.ranks = ranks

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        """Losses ``[B, L]`` of targets ``[B, L]``; `reduction` must be "none"."""
        losses = self.model(tokens, targets, reduction=reduction, context_parallel=self.ranks)
        return self.ranks.rows(tokens.shape[1]).whole(losses)


def _share(tensor: Tensor, ranks: int) -> Tensor:
    shared: Tensor = _Share.apply(tensor, ranks)  # type: ignore[no-untyped-call]
    return shared


class _Share(torch.autograd.Function):
    """The same tensor; its gradient is divided by a number of ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.ranks, None
