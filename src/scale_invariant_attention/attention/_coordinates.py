"""Coordinates: integers that place tokens in n dimensions, and the Euclidean distance between them.

    r_ij = sqrt(sum over d of (query_coordinates[i, d] - key_coordinates[j, d])^2)

Checked, they are ``[1 or B, n, length]``: the tokens last, as in every other tensor of a visibility.
"""

import torch
from torch import Tensor

from .numerics import check_dense

MOST_DIMENSIONS = 8
# Coordinates are from -FARTHEST_COORDINATE to FARTHEST_COORDINATE - 1: float32 holds each of them, and
# float64 the squared distance in up to MOST_DIMENSIONS dimensions.
FARTHEST_COORDINATE = 2**24
# Beyond all distances, and its square fits into 64 bits.
BEYOND = 2**31


def checked_coordinates(
    name: str, tensor: Tensor | None, batch: int, length: int, device: torch.device
) -> Tensor | None:
    """A tensor [length, n] or [batch, length, n] of integers as int64 [1 or batch, n, length]."""
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(tensor).__name__}")
    check_dense(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got {tensor.dtype}")
    if tensor.ndim not in (2, 3) or tensor.shape[:-1] not in ((length,), (batch, length)):
        raise ValueError(
            f"{name} must be [{length}, n] or [{batch}, {length}, n] with n coordinates per token, "
            f"got shape {tuple(tensor.shape)}"
        )
    if not 1 <= tensor.shape[-1] <= MOST_DIMENSIONS:
        raise ValueError(
            f"{name} must have 1 to {MOST_DIMENSIONS} coordinates per token, "
            f"got shape {tuple(tensor.shape)}"
        )
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device} but query is on {device}")
    rows = tensor.long() if tensor.ndim == 3 else tensor.long().unsqueeze(0)
    return rows.transpose(1, 2).contiguous()


def check_use(given: dict[str, bool], is_causal: bool, sinks: int) -> None:
    """Raise for arguments that have no meaning where tokens have coordinates instead of positions.

    `given` says which of the four tensors there are.
    """
    named = next(name for name in ("key_coordinates", "query_coordinates") if given[name])
    for name in ("key_positions", "query_positions"):
        if given[name]:
            raise ValueError(
                f"{name} and {named} exclude each other: a token has a position or coordinates; "
                "leave one of them out"
            )
    if not given["key_coordinates"]:
        raise ValueError(
            "query_coordinates was given without key_coordinates: pass both, or key_coordinates "
            "alone when the queries are the last of the keys"
        )
    if is_causal:
        raise ValueError(
            f"is_causal must be False with {named}: tokens with coordinates have no order; "
            "pass is_causal=False, and key_mask or documents to hide keys"
        )
    if sinks:
        raise ValueError(
            f"sinks must be 0 with {named}, got {sinks}: sinks are keys at low positions, and "
            "coordinates are no positions"
        )


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """The squared distance of every pair, exact.

    ``[..., n, Lq]`` and ``[..., n, Lk]`` give ``[..., Lq, Lk]``.

    >>> squared_distance(torch.tensor([[0], [0]]), torch.tensor([[0, 3], [1, 4]]))
    tensor([[ 1, 25]])
    """
    by_dimension = zip(query.unbind(-2), key.unbind(-2), strict=True)
    offsets = (queries.unsqueeze(-1) - keys.unsqueeze(-2) for queries, keys in by_dimension)
    first, *others = (offset.square() for offset in offsets)
    return sum(others, start=first)


def farthest_distance(query: Tensor, key: Tensor) -> Tensor:
    """A distance that no pair exceeds: the diagonal of the box around queries and keys, rounded up."""
    ahead = query.amax(-1) - key.amin(-1)
    behind = key.amax(-1) - query.amin(-1)
    squared = torch.maximum(ahead, behind).square().sum(-1).amax()
    return squared.double().sqrt().ceil().long()
