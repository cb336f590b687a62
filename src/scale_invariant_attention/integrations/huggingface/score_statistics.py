"""Mean and spread of the scores ``scale * q . k`` of visible pairs, for each head, in bounded memory."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ...attention.contract import checked_call
from ...attention.visibility import Geometry

# Pairs of query and key at once, over batch and heads: eight megabytes in float32.
PAIRS = 2**21


@dataclass(eq=False)
class ScoreSums:
    """Sums over pairs, float64 ``[heads]``, to which texts are added one after another.

    >>> sums = ScoreSums.zeros(heads=2)
    >>> query, key = torch.ones(2, 1, 2, 10, 4).unbind()
    >>> sums.add(query, key)
    >>> sums.mean, sums.spread                    # every score is 4 / sqrt(4)
    (tensor([2., 2.], dtype=torch.float64), tensor([0., 0.], dtype=torch.float64))
    """

    count: float
    first: Tensor
    second: Tensor

    @classmethod
    def zeros(cls, heads: int) -> "ScoreSums":
        """No pair yet."""
        return cls(
            0.0, torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        )

    @torch.no_grad()
    def add(
        self,
        query: Tensor,
        key: Tensor,
        *,
        scale: float | None = None,
        skip_keys: int = 0,
        **visibility: Any,
    ) -> None:
        """Add the scores of queries ``[B, H, L, D]`` and keys ``[B, Hk, N, D]``.

        `visibility` are the op's arguments that say what a query sees; the first `skip_keys` keys of
        every document are left out, as the attention sink that a first token is.
        """
        call = checked_call(query, key, key, affine=None, tau=1.0, scale=scale, **visibility)
        geometry = Geometry.of(call)
        batch, heads, queries, head_dim = query.shape
        keys = key.shape[2]
        rows = max(1, PAIRS // max(1, batch * heads * keys))
        wide = key.float().repeat_interleave(call.group, dim=1)
        scale = 1 / sqrt(head_dim) if scale is None else scale
        sink = geometry.key_positions.unsqueeze(-2) < skip_keys
        for start in range(0, queries, rows):
            part = slice(start, start + rows)
            tile = geometry.tile(part, slice(None))
            seen = (tile.visible & ~sink).unsqueeze(1).expand(batch, 1, -1, keys)
            scores = (scale * query[:, :, part].float() @ wide.transpose(-2, -1)) * seen
            self.count += float(seen.sum())
            self.first += scores.sum((0, 2, 3), dtype=torch.float64).cpu()
            self.second += scores.square().sum((0, 2, 3), dtype=torch.float64).cpu()

    @property
    def mean(self) -> Tensor:
        """The mean score of each head."""
        return self.first / self.count

    @property
    def spread(self) -> Tensor:
        """The standard deviation of each head's scores."""
        return (self.second / self.count - self.mean.square()).clamp(min=0).sqrt()
