"""Adapts a transformers cache to the blocks of our GPT, and records the context length with it.

Keys rotated for one context length cannot be used at another, so the first call fixes the context length
of a cache, as with our own. It is an attribute of the cache object, so copies of the cache keep it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache

from ..attention import DistanceAffine
from ..schemes import LogN, Scheme

NOTES = "scale_invariant_notes"


@dataclass
class Notes:
    """The context length of a cache, and tables that later calls reuse."""

    context_length: int | Tensor | None = None
    affines: dict[int, DistanceAffine] = field(default_factory=dict)


class TransformersCache:
    """The cache during one call, after which it holds `end` tokens."""

    def __init__(self, cache: Cache, end: int, notes: Notes, *, first: bool) -> None:
        self._cache = cache
        self._end = end
        self._notes = notes
        self._first = first

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add ``[B, H, new, D]`` to a layer, and return all of its keys and values so far."""
        keys, values = self._cache.update(key, value, layer)
        # A static cache also returns its unused memory.
        return keys.narrow(2, 0, self._end), values.narrow(2, 0, self._end)

    def affine(
        self, layer: int, span: int, make: Callable[[int], DistanceAffine]
    ) -> DistanceAffine:
        """A layer's gain and bias for at least `span` distances, rebuilt when `span` outgrows them."""
        # Stored tables carry no gradients.
        if self._first or torch.is_grad_enabled():
            return make(span)
        affine = self._notes.affines.get(layer)
        if affine is None or affine.length < span:
            self._notes.affines[layer] = affine = make(2 * span)
        return affine


def notes_of(cache: Cache, length: int) -> Notes:
    """The notes of a cache that holds `length` tokens; an empty cache gets new ones."""
    notes = getattr(cache, NOTES, None)
    if length == 0 or not isinstance(notes, Notes):
        notes = Notes()
        setattr(cache, NOTES, notes)
    return notes


def context_of_call(
    scheme: Scheme,
    notes: Notes,
    lengths: int | Tensor,
    given: int | Tensor | None,
    *,
    rows: int,
    first: bool,
) -> int | Tensor | None:
    """The context length of a call with a cache, after which the text has `lengths` tokens.

    None means the default of a call without a cache. Raises if the cache was filled for another length.
    """
    if not scheme.depends_on_context:
        return None
    if first:
        notes.context_length = lengths if given is None else given
        return given
    settled = given if notes.context_length is None else notes.context_length
    if settled is None:
        raise ValueError(
            "past_key_values was filled elsewhere, and this scheme depends on the context length: pass "
            "context_length=..., the length it was filled for"
        )
    settled = _repeated(settled, rows)
    # Up to the training length NTK and YaRN change nothing, so all shorter lengths are equivalent.
    counts_all = isinstance(scheme.query_scale, LogN) and scheme.query_scale.depends_on_context
    least = 1 if counts_all else scheme.train_length or 1
    if given is not None and _differ(_at_least(given, least), _at_least(settled, least)):
        raise ValueError(
            f"context_length must be {settled}, for which past_key_values was filled, got {given}: "
            "keys of one context length cannot be used at another"
        )
    settled = _at_least(settled, least)
    outgrown = lengths > settled
    if outgrown.any() if isinstance(outgrown, Tensor) else outgrown:
        raise ValueError(
            f"the text has outgrown the context length of past_key_values, {settled}, and this scheme "
            "depends on it: pass context_length=..., the final length of the text, from the first call "
            "on, as generate() does"
        )
    return settled


def _repeated(length: int | Tensor, rows: int) -> int | Tensor:
    """Lengths for a cache whose rows were repeated, as for several samples per prompt."""
    if isinstance(length, Tensor) and len(length) != rows and rows % len(length) == 0:
        return length.repeat_interleave(rows // len(length))
    return length


def _at_least(length: int | Tensor, least: int) -> int | Tensor:
    return length.clamp(min=least) if isinstance(length, Tensor) else max(length, least)


def _differ(first: int | Tensor, second: int | Tensor) -> bool:
    different = first != second
    return bool(different.any()) if isinstance(different, Tensor) else different
