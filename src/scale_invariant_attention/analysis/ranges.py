"""Ranges of distance, such as decades: the attention that each gets, and the entropy inside it.

    Z = sum of e^L,  N = sum of L e^L  over a range's visible keys;   mass Z,   entropy H = log Z - N / Z

Shapes: B batch, H heads, L queries, R queries of interest, N keys, G ranges.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import torch
from torch import Tensor

from ..arguments import integer, ratio_above_one
from ..attention import DistanceAffine
from ..attention.api import attend
from ..attention.numerics import compute_dtype
from ..theory.running_softmax import RunningSoftmax
from ._scores import LayerScores, Tile

DECADE = 10.0
# Nearer distances are excluded: there the transform hardly changes attention.
LOCAL = 10

# If the context truncates the last range, it counts only if it ends at this multiple of its start or
# later.
NARROWEST = 2.0
# Head size of the values in `range_log_mass`, which do not matter: the least that GPUs allow.
VALUES = 16


def range_edges(length: int, ratio: float = DECADE) -> tuple[int, ...]:
    """Edges of ranges up to `length`: 0, `ratio`, and then each `ratio` times the one before.

    The last range ends at `length`, even if that truncates it.

    >>> range_edges(4096), range_edges(20, ratio=2)
    ((0, 10, 100, 1000, 4096), (0, 2, 4, 8, 16, 20))
    """
    length = integer("length", length, at_least=1)
    ratio = ratio_above_one(ratio)
    edges, edge = [0], ratio
    while round(edge) < length:
        if round(edge) > edges[-1]:
            edges.append(round(edge))
        edge *= ratio
    return (*edges, length)


def checked_edges(edges: Sequence[int]) -> tuple[int, ...]:
    """Check that edges rise, starting at 0.

    >>> checked_edges([0, 10, 50])
    (0, 10, 50)
    """
    whole = tuple(integer("edges", edge, at_least=0) for edge in edges)
    rising = len(whole) > 1 and all(low < high for low, high in pairwise(whole))
    if not rising or whole[0] != 0:
        raise ValueError(
            f"edges must be two or more increasing distances that start at 0, got {list(edges)}"
        )
    return whole


def range_name(start: int, stop: int) -> str:
    """Label of a range in tables: its first and last distance.

    >>> range_name(10, 100), range_name(0, 1)
    ('10-99', '0')
    """
    return f"{start:,}" if stop == start + 1 else f"{start:,}-{stop - 1:,}"


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
            for index, inside in _ranges_in(tile, edges):
                softmaxes.setdefault(index, RunningSoftmax()).add(
                    tile.logits.masked_fill(~inside.unsqueeze(1), -torch.inf)
                )
                keys[:, queries, index] += inside.sum(-1)
        for index, softmax in softmaxes.items():
            log_mass[:, :, queries, index] = softmax.log_mass
            entropy[:, :, queries, index] = softmax.entropy
    return RangeProfile(edges, log_mass, entropy, keys)


def _ranges_in(tile: Tile, edges: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
    """The ranges in which a tile has visible pairs, and which pairs those are."""
    seen = tile.distance[tile.visible]
    nearest, farthest = int(seen.min()), int(seen.max())
    for index, (start, stop) in enumerate(pairwise(edges)):
        if start <= farthest and nearest < stop:
            yield index, tile.visible & (tile.distance >= start) & (tile.distance < stop)


def range_log_mass(scores: LayerScores, edges: Sequence[int], *, backend: str = "auto") -> Tensor:
    """``log_mass`` of `range_profile` for all queries, ``[B, H, L, G]``, as precise as the op.

    A range's log mass is the log-sum-exp of a call of the op that sees only the range: its window ends
    with the range, and a bias of -inf hides nearer keys. The op applies no tables to sinks, so these are
    the keys of a second call. float32, or float64 for float64 inputs; -inf if a query sees no key of a
    range. Memory is linear in the length. Keys at ``edges[-1]`` and beyond count as hidden.

    >>> query = torch.zeros(1, 1, 100, 8)
    >>> log_mass = range_log_mass(LayerScores(0, query, query), (0, 10, 100))
    >>> log_mass.softmax(-1)[..., -1, :]
    tensor([[[0.1000, 0.9000]]])
    """
    parts = list(_without_sinks(_without_query_scale(scores)))
    masses = []
    for start, stop in pairwise(checked_edges(edges)):
        mass, *others = (_mass(part, start, stop, backend) for part in parts)
        for other in others:
            mass = torch.logaddexp(mass, other)
        masses.append(mass)
    return torch.stack(masses, -1)


def _mass(scores: LayerScores, start: int, stop: int, backend: str) -> Tensor:
    """Log mass of one range, ``[B, H, L]``."""
    window = min(stop, scores.visibility.window or stop)
    affine = scores.affine or DistanceAffine.identity(stop, device=scores.query.device)
    bias = affine.bias.clone()
    bias[..., :start] = -torch.inf
    log_mass: Tensor = attend(
        scores.query,
        scores.key,
        # The values do not matter, so they are as narrow as GPUs allow.
        scores.key[..., :VALUES],
        affine=DistanceAffine(affine.gain, bias),
        visibility=replace(scores.visibility, window=window),
        scale=scores.scale,
        key_bias=scores.key_bias,
        return_lse=True,
        backend=backend,
    )[1]
    return log_mass


def _without_query_scale(scores: LayerScores) -> LayerScores:
    """Multiply the queries by their factor, in the precision of the logits."""
    if scores.query_scale is None:
        return scores
    dtype = compute_dtype(scores.query.dtype)
    query = scores.query.to(dtype) * scores.query_scale.to(dtype).unsqueeze(-1)
    return replace(scores, query=query, key=scores.key.to(dtype), query_scale=None, unrotated=None)


def _without_sinks(scores: LayerScores) -> Iterator[LayerScores]:
    """Split into ordinary keys and sinks, which have no tables and which no window hides."""
    visibility = scores.visibility
    if visibility.sinks == 0:
        yield scores
        return
    batch, keys = scores.query.shape[0], scores.key.shape[2]
    positions = visibility.key_positions
    if positions is None:
        positions = torch.arange(keys, device=scores.query.device)
    sink = (positions < visibility.sinks).expand(batch, keys)
    shown = torch.ones_like(sink) if visibility.key_mask is None else visibility.key_mask
    plain = replace(visibility, sinks=0, key_mask=shown & ~sink)
    yield replace(scores, visibility=plain)
    yield replace(
        scores, affine=None, visibility=replace(plain, key_mask=shown & sink, window=None)
    )


def mass_slope(edges: Sequence[int], mass: Tensor, *, local: int = LOCAL) -> Tensor:
    """Deviation from scale invariance: the slope ``[...]`` of mass ``[..., G]`` against distance.

    Attention is scale-invariant if every range `[a, b)` between `edges` gets mass in proportion to
    log(b / a), as weights that fall like 1/t do. So mass over log(b / a) against distance, on
    logarithmic axes, has by least squares

        slope 0                    scale-invariant
        slope 1                    the same weight at every distance: distant text dominates
        slope v - 1 + mu / a_t     the transform on Gaussian scores of variance v and mean mu, beyond tau

    Mass may be unnormalised. NaN if fewer than two ranges are beyond `local`, or one has no mass.

    >>> edges = (0, 10, 100, 1000)
    >>> mass_slope(edges, torch.tensor([10.0, 90.0, 900.0])).round(decimals=4)
    tensor(1., dtype=torch.float64)
    >>> mass_slope(edges, torch.tensor([10.0, 2.0, 2.0]))
    tensor(0., dtype=torch.float64)
    """
    ranges = [(index, *both) for index, both in enumerate(pairwise(edges)) if both[0] >= local]
    if ranges and ranges[-1][2] < NARROWEST * ranges[-1][1]:
        ranges.pop()
    if len(ranges) < 2:
        return torch.full(mass.shape[:-1], math.nan, dtype=torch.float64)
    widths = torch.tensor(
        [math.log(stop / start) for _, start, stop in ranges], dtype=torch.float64
    )
    sizes = torch.tensor([stop - start for _, start, stop in ranges], dtype=torch.float64)
    # The logarithmic mean of a range's ends, for which a constant weight has slope 1.
    x = (sizes / widths).log()
    chosen = mass[..., [index for index, _, _ in ranges]].double().cpu()
    y = (chosen / widths).log()
    x = x - x.mean()
    slope = ((y - y.mean(-1, keepdim=True)) * x).sum(-1) / x.square().sum()
    return slope.where(slope.isfinite(), math.nan)
