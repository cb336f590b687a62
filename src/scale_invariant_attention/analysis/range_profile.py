"""Attention by range of distance: the mass of each range and the entropy inside it.

    Z = sum of e^L,  N = sum of L e^L  over a range's visible keys;   mass Z,   entropy H = log Z - N / Z

Shapes: B batch, H heads, R queries, G ranges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from ..theory.running_softmax import RunningSoftmax
from .ranges import checked_edges
from .scores import LayerScores, Tile


@dataclass(frozen=True, eq=False)
class RangeProfile:
    """Attention of some queries by ranges ``[edges[g], edges[g + 1])`` of distance, float64.

    Entropies are in nats, of the weights renormalised inside the range; 0 if a query sees no key of a
    range.
    """

    edges: tuple[int, ...]
    log_mass: Tensor  # [B, H, R, G], -inf if no key is visible
    entropy: Tensor  # [B, H, R, G]
    keys: Tensor  # [B, R, G], number of visible keys

    @property
    def share(self) -> Tensor:
        """Fraction of all attention on each range; NaN for a query that sees no key."""
        return (self.log_mass - self.log_mass.logsumexp(-1, keepdim=True)).exp()

    @property
    def global_entropy(self) -> Tensor:
        """Entropy of all attention, ``[B, H, R]``."""
        return self.merged((0, self.edges[-1])).entropy.squeeze(-1)

    def recent_share(self, recent: int) -> Tensor:
        """Fraction of all attention on the nearest `recent` tokens, ``[B, H, R]``."""
        if recent >= self.edges[-1]:
            return self.share.sum(-1)
        return self.merged((0, recent, self.edges[-1])).share[..., 0]

    def merged(self, edges: Sequence[int]) -> "RangeProfile":
        """The same profile with fewer edges.

        With `p` the fraction of a range on each of its parts, its entropy is ``sum p (H - log p)``.
        """
        wanted = checked_edges(edges)
        if wanted[-1] != self.edges[-1] or not set(wanted) <= set(self.edges):
            raise ValueError(
                f"edges must be some of {list(self.edges)}, including the last, got {list(edges)}"
            )
        masses, entropies, keys = [], [], []
        for start, stop in pairwise(wanted):
            inside = slice(self.edges.index(start), self.edges.index(stop))
            log_mass = self.log_mass[..., inside].logsumexp(-1)
            known = log_mass.masked_fill(log_mass == -torch.inf, 0).unsqueeze(-1)
            parts = (self.log_mass[..., inside] - known).exp()
            masses.append(log_mass)
            entropies.append(
                (parts * self.entropy[..., inside] + torch.special.entr(parts)).sum(-1)
            )
            keys.append(self.keys[..., inside].sum(-1))
        return RangeProfile(wanted, *(torch.stack(it, -1) for it in (masses, entropies, keys)))


def range_profile(
    scores: LayerScores, edges: Sequence[int], rows: Tensor | None = None
) -> RangeProfile:
    """Profile of the queries at indices `rows`, over all their keys; None is every query.

    Exact for these queries. Computed in tiles: apart from the result, memory does not grow with the
    number of keys or queries. Keys at ``edges[-1]`` and beyond count as hidden.

    >>> query = torch.zeros(1, 1, 100, 8)
    >>> profile = range_profile(LayerScores(0, query, query), (0, 10, 100), torch.tensor([99]))
    >>> profile.share
    tensor([[[[0.1000, 0.9000]]]], dtype=torch.float64)
    >>> profile.entropy.exp()
    tensor([[[[10.0000, 90.0000]]]], dtype=torch.float64)
    """
    edges = checked_edges(edges)
    count = scores.query.shape[2] if rows is None else len(rows)
    shape = (scores.query.shape[0], scores.heads, count, len(edges) - 1)
    device = scores.query.device
    log_mass = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
    entropy = torch.zeros(shape, dtype=torch.float64, device=device)
    keys = torch.zeros(shape[0], *shape[2:], dtype=torch.long, device=device)
    for queries, tiles in groupby(scores.tiles(rows), key=lambda tile: tile.queries):
        softmaxes: dict[int, RunningSoftmax] = {}
        for tile in tiles:
            for place, inside in _ranges_in(tile, edges):
                softmaxes.setdefault(place, RunningSoftmax()).add(
                    tile.logits.masked_fill(~inside.unsqueeze(1), -torch.inf)
                )
                keys[:, queries, place] += inside.sum(-1)
        for place, softmax in softmaxes.items():
            log_mass[:, :, queries, place] = softmax.log_mass
            entropy[:, :, queries, place] = softmax.entropy
    return RangeProfile(edges, log_mass, entropy, keys)


def _ranges_in(tile: Tile, edges: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
    """The ranges in which a tile has visible pairs, and which pairs those are."""
    seen = tile.distance[tile.visible]
    nearest, farthest = int(seen.min()), int(seen.max())
    for place, (start, stop) in enumerate(pairwise(edges)):
        if start <= farthest and nearest < stop:
            yield place, tile.visible & (tile.distance >= start) & (tile.distance < stop)
