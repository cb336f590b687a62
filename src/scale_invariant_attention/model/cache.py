"""The keys and values of the tokens so far, so that a step of generation costs one token."""

from collections.abc import Callable
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import DistanceAffine


class LayerCache(Protocol):
    """What a layer needs of a cache, whoever keeps the keys and values."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add ``[B, H, new, D]`` to a layer, and return all of its keys and values so far."""
        ...

    def affine(
        self, layer: int, span: int, make: Callable[[int], DistanceAffine]
    ) -> DistanceAffine:
        """A layer's gain and bias for at least `span` distances, which `make` makes."""
        ...


class KeyValueCache:
    """What the tokens so far leave behind for the next ones, in memory that doubles when it is full.

    ``GPT.new_cache`` makes one. It belongs to that model with its weights as they are, and is for
    inference only.
    """

    def __init__(
        self,
        layers: int,
        *,
        model: nn.Module,
        depends_on_context: bool,
        context_length: int | Tensor | None,
        train_length: int | None,
        room: int,
    ) -> None:
        self.length = 0
        # A copy, because a tensor may be changed by its owner.
        given = context_length
        self.context_length = given.clone() if isinstance(given, Tensor) else given
        # Weakly, so that a copy of a cache, as a search needs it, copies no model.
        self._model = ref(model)
        self._settles_context = context_length is None
        self._depends_on_context = depends_on_context
        self._train_length = train_length or 1
        self._keys = [_GrowingTensor(dim=2, room=room) for _ in range(layers)]
        self._values = [_GrowingTensor(dim=2, room=room) for _ in range(layers)]
        self._positions = _GrowingTensor(dim=1, room=room)
        self._token_mask = _GrowingTensor(dim=1, room=room)
        self._affines: list[DistanceAffine | None] = [None] * layers

    def __repr__(self) -> str:
        return f"KeyValueCache(length={self.length}, context_length={self.context_length})"

    def begin(self, model: nn.Module, batch: int) -> None:
        """Refuse another model than that which made this cache, and another number of rows.

        What a first call has settled that failed is forgotten.
        """
        if self._model() is not model:
            raise ValueError(
                "cache was made by another model, whose keys and values mean nothing to this one: "
                "make it with new_cache() of the model that is called"
            )
        memory = self._keys[0].memory
        if self.length and memory is not None and memory.shape[0] != batch:
            raise ValueError(
                f"tokens must have the {memory.shape[0]} rows that cache holds, got {batch}: "
                "make a cache for every batch with new_cache()"
            )
        if self.length == 0 and self._settles_context:
            self.context_length = None

    def context_for(self, lengths: int | Tensor) -> int | Tensor:
        """The context length, for a text that has now reached `lengths`: one number, or ``[B]``.

        Keys that are rotated for one context length cannot be used at another, so it is settled by the
        first call that succeeds, and a text that outgrows it is refused.
        """
        if self.context_length is None:
            if isinstance(lengths, Tensor):
                self.context_length = lengths.clamp(min=self._train_length)
            else:
                self.context_length = max(lengths, self._train_length)
        if self._depends_on_context:
            outgrown = lengths > self.context_length
            if outgrown.any() if isinstance(outgrown, Tensor) else outgrown:
                raise ValueError(
                    f"the text has outgrown the context length of its cache, {self.context_length}, "
                    "and this scheme depends on it: make the cache with context_length=..., the length "
                    "that the text is going to have"
                )
        return self.context_length

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add ``[B, H, new, D]`` to a layer, and return all of its keys and values so far.

        They count when all layers have them and `length` is moved on, so that a step that failed can be
        repeated.
        """
        if key.requires_grad:
            raise RuntimeError(
                "a KeyValueCache keeps no gradients: call the model under torch.no_grad(), "
                "or without a cache"
            )
        memory = self._keys[layer].memory
        if self.length and memory is not None and memory.dtype != key.dtype:
            raise TypeError(
                f"the cache holds keys in {memory.dtype}, and new ones are in {key.dtype}: keep dtype "
                "and autocast as they are while a cache is used, or make a new one"
            )
        keys = self._keys[layer].write(key, self.length)
        return keys, self._values[layer].write(value, self.length)

    @property
    def keeps_positions(self) -> bool:
        """Whether positions are kept: not as long as the tokens simply stand at 0, 1, 2, ..."""
        return self._positions.memory is not None

    def keep_positions(self, positions: Tensor, token_mask: Tensor, start: int) -> None:
        """Write positions and mask ``[B, new]``, False for padding, from `start` on."""
        self._positions.write(positions, start)
        self._token_mask.write(token_mask, start)

    def positions_and_mask(self, end: int) -> tuple[Tensor, Tensor]:
        """Positions and mask ``[B, end]`` of the first `end` tokens."""
        return self._positions.read(end), self._token_mask.read(end)

    def affine(
        self, layer: int, span: int, make: Callable[[int], DistanceAffine]
    ) -> DistanceAffine:
        """A layer's gain and bias for at least `span` distances, made anew when it has outgrown them."""
        affine = self._affines[layer]
        if affine is None or affine.length < span:
            self._affines[layer] = affine = make(max(2 * span, self._keys[layer].room))
        return affine


class _GrowingTensor:
    """A tensor that grows along a dimension, copied only when its memory doubles."""

    def __init__(self, dim: int, room: int) -> None:
        self.dim = dim
        self.room = room
        self.memory: Tensor | None = None

    def write(self, new: Tensor, start: int) -> Tensor:
        """Write from `start` on, and return everything up to the end of what was written."""
        length = new.shape[self.dim]
        end = start + length
        if start == 0 and self.memory is not None and not self._alike(new):
            # What a first call left that failed.
            self.memory = None
        if self.memory is None or self.memory.shape[self.dim] < end:
            shape = list(new.shape)
            shape[self.dim] = max(end, self.room, 2 * start)
            # Not a tensor of inference mode, which could be written to in that mode only.
            with torch.inference_mode(False):
                memory = new.new_empty(shape)
            if self.memory is not None:
                memory.narrow(self.dim, 0, start).copy_(self.memory.narrow(self.dim, 0, start))
            self.memory = memory
        self.memory.narrow(self.dim, start, length).copy_(new)
        return self.read(end)

    def _alike(self, new: Tensor) -> bool:
        assert self.memory is not None
        return new.dtype == self.memory.dtype and (
            new.select(self.dim, 0).shape == self.memory.select(self.dim, 0).shape
        )

    def read(self, end: int) -> Tensor:
        """Everything before `end`."""
        assert self.memory is not None
        return self.memory.narrow(self.dim, 0, end)
