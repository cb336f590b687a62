"""The rivals: plain SDPA, a plain eager implementation, and every backend that runs here."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...attention import (
    DistanceAffine,
    available_backends,
    distance_affine_attention,
    scale_invariant_attention,
    unavailable_backends,
)

TAU = 10.0
BASELINE = "sdpa"

# Query, key and value; of a backend also the other arguments of the op, by name.
Attention = Callable[..., Tensor]


@dataclass(frozen=True)
class Rival:
    """An implementation of causal attention on ``[batch, heads, length, head_dim]``.

    Not every one `transforms` the scores by distance, `trains`, or takes the `whole_contract` of
    the op. One that holds whole score matrices says how many at its peak; one that is not
    `invited` runs only when named.
    """

    name: str
    attention: Attention
    transforms: bool = True
    trains: bool = True
    whole_contract: bool = True
    score_matrices: int = 0
    invited: bool = True


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's plain attention: as many queries as keys, or one query that sees every key."""
    # To torch a lone causal query is the first one, which would see a single key.
    return scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The transform as one would write it down first, with the whole score matrix."""
    position = torch.arange(key.shape[2])
    offset = position[-query.shape[2] :].unsqueeze(-1) - position
    doubled = 2 * torch.log1p(offset.clamp_min(0) / TAU)
    scores = query @ key.mT / sqrt(query.shape[3])
    logits = torch.sqrt(1 + doubled) * scores - doubled
    return torch.softmax(logits.masked_fill(offset < 0, -torch.inf), dim=-1) @ value


def backend(name: str, **traits: Any) -> Rival:
    """A backend of the package as a rival: the transform, or the tables of an `affine`."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        affine: DistanceAffine | None = None,
        **contract: Any,
    ) -> Tensor:
        contract["backend"] = name
        out: Tensor
        if affine is None:
            out = scale_invariant_attention(query, key, value, tau=TAU, **contract)
        else:
            out = distance_affine_attention(query, key, value, affine, **contract)
        return out

    return Rival(name, attention, **traits)


KNOWN = (
    Rival(BASELINE, sdpa, transforms=False, whole_contract=False),
    Rival("eager", eager, whole_contract=False, score_matrices=5),
    backend("reference", score_matrices=6, invited=False),
    backend("flex", trains=False),
)


def contenders() -> dict[str, Rival]:
    """All rivals that can run here, by name; a backend that is not `KNOWN` has the usual traits.

    >>> list(contenders())[:2]
    ['sdpa', 'eager']
    """
    known = {rival.name: rival for rival in KNOWN}
    names = (BASELINE, "eager", *available_backends())
    return {name: known.get(name) or backend(name) for name in names}


def rival_named(name: str) -> Rival:
    """A rival that can run here; the error says why one cannot."""
    known = contenders()
    if name in known:
        return known[name]
    absence = unavailable_backends().get(name, "there is no such rival")
    raise ValueError(
        f"rival {name!r} cannot take part: {absence}; those that can are {', '.join(known)}"
    )
