"""The rivals: plain SDPA, a plain eager implementation, and every backend that runs here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import scale_invariant_attention as sia

TAU = 10.0
BASELINE = "sdpa"

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rival:
    """An implementation of causal attention on ``[1, heads, length, head_dim]``.

    Not every one `transforms` the scores by distance or `trains`. One that holds whole score
    matrices says how many at its peak; one that is not `invited` runs only when named.
    """

    name: str
    attention: Attention
    transforms: bool = True
    trains: bool = True
    score_matrices: int = 0
    invited: bool = True


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The transform as one would write it down first, with the whole score matrix."""
    position = torch.arange(query.shape[2])
    offset = position.unsqueeze(-1) - position
    doubled = 2 * torch.log1p(offset.clamp_min(0) / TAU)
    scores = query @ key.mT / sqrt(query.shape[3])
    logits = torch.sqrt(1 + doubled) * scores - doubled
    return torch.softmax(logits.masked_fill(offset < 0, -torch.inf), dim=-1) @ value


def backend(name: str, **traits: Any) -> Rival:
    """A backend of the package as a rival."""
    attention = partial(sia.scale_invariant_attention, tau=TAU, backend=name)
    return Rival(name, attention, **traits)


KNOWN = (
    Rival(BASELINE, partial(scaled_dot_product_attention, is_causal=True), transforms=False),
    Rival("eager", eager, score_matrices=5),
    backend("reference", score_matrices=6, invited=False),
    backend("flex", trains=False, invited=False),
)


def rivals() -> dict[str, Rival]:
    """All rivals that can run here, by name; a backend that is not `KNOWN` has the usual traits."""
    known = {rival.name: rival for rival in KNOWN}
    names = (BASELINE, "eager", *sia.available_backends())
    return {name: known.get(name) or backend(name) for name in names}
