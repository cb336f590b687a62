"""Mass by range of distance for every query, computed by the op: as fast as attention itself.

A range's log mass is the log-sum-exp of a call that sees only the range: its window ends with the range,
and a bias of -inf hides nearer keys. The op applies no tables to sinks, so these are the keys of a
second call.

Shapes: B batch, H heads, L queries, N keys, G ranges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ..attention import DistanceAffine
from ..attention.api import attend
from ..attention.numerics import compute_dtype
from .ranges import checked_edges
from .scores import LayerScores

VALUES = 16


def range_log_mass(scores: LayerScores, edges: Sequence[int], *, backend: str = "auto") -> Tensor:
    """``log_mass`` of `range_profile` for all queries, ``[B, H, L, G]``, as precise as the op.

    float32, or float64 for float64 inputs; -inf if a query sees no key of a range. Memory is linear in
    the length. Keys at ``edges[-1]`` and beyond count as hidden.

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
    _, log_mass = attend(
        scores.query,
        scores.key,
        # The values do not matter, so they are as narrow as GPUs allow.
        scores.key[..., :VALUES],
        affine=DistanceAffine(affine.gain, bias),
        visibility=replace(scores.visibility, window=window),
        scale=scores.scale,
        return_lse=True,
        backend=backend,
    )
    found: Tensor = log_mass
    return found


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
