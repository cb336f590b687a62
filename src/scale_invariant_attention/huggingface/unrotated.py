"""Queries and keys before rotary: what a layer's attention is given if every token stands at position 0.

There cosines are 1 and sines 0, so that a family's own code rotates nothing, in whatever layout it does
so, and layers that never rotate give what they always give.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .attention import OBSERVER


class _SeenError(Exception):
    """Ends a call of a layer when its queries and keys are known."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        super().__init__()
        self.query, self.key = query, key


def unrotated(
    attention: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Query and key of a call of `attention`, with the scheme's factors, as if nothing rotated.

    None where that is not known: the call has no rotary embedding in a form that is known here.
    """
    embedding = _unmoved(named.get("position_embeddings"))
    if embedding is None:
        return None

    def stop(module: nn.Module, slots: Any, query: Tensor, key: Tensor, *others: Any) -> None:
        raise _SeenError(query, key)

    observer = getattr(attention, OBSERVER)
    setattr(attention, OBSERVER, stop)
    try:
        attention.forward(*arguments, **{**named, "position_embeddings": embedding})
    except _SeenError as seen:
        return seen.query, seen.key
    finally:
        setattr(attention, OBSERVER, observer)
    return None


def _unmoved(embedding: Any) -> Any:
    """The embedding of position 0 everywhere, of cosines and sines or of complex numbers."""
    if isinstance(embedding, Tensor) and embedding.is_complex():
        return torch.ones_like(embedding)
    if isinstance(embedding, tuple) and len(embedding) == 2:
        cosine, sine = embedding
        return torch.ones_like(cosine), torch.zeros_like(sine)
    return None
