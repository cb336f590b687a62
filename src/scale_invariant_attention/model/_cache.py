"""KV cache: keys and values of the tokens so far, so that a generation step processes one token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import DistanceAffine
from ..schemes.memory import MemoryState

if TYPE_CHECKING:
    from ._segments import SegmentLayout
    from .gpt import GPT

# Before any position.
BEFORE = -(2**61)


class LayerCache(Protocol):
    """The cache interface that a layer uses."""

    def append(
        self, layer: int, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add ``[B, H, new, D]`` and biases of the keys ``[B, H, new]``, if there are any, to a layer.

        Returns its keys, values and biases that are not forgotten.
        """

    def last_bias(self, layer: int) -> Tensor | None:
        """The bias ``[B, H, 1]`` of the last key so far; None if there is none."""

    def forgotten(self, layer: int) -> int:
        """The number of first tokens that a layer with a window leaves out in this call."""

    def affine(
        self, layer: int, span: int, make: Callable[[int], DistanceAffine]
    ) -> DistanceAffine:
        """A layer's gain and bias for at least `span` distances, computed by `make`."""


@dataclass(frozen=True, eq=False)
class _CurrentSegment:
    """A layer's memory, and the keys and values of its incomplete segment."""

    state: MemoryState | None
    keys: Tensor
    values: Tensor


class KeyValueCache:
    """Keys and values of all tokens so far, in memory that doubles when it is full.

    Layers with a window keep those that a later token can see, and as many others at most. Layers whose
    scheme has a memory keep that memory, and the incomplete segment. ``GPT.new_cache`` creates one. It
    is valid for that model with its current weights, and for inference only.
    """

    def __init__(self, model: "GPT", context_length: int | Tensor | None, room: int) -> None:
        self.length = 0
        # A copy, because the caller may change the tensor.
        self.context_length = (
            context_length.clone() if isinstance(context_length, Tensor) else context_length
        )
        # A weak reference, so that copying a cache, as in a beam search, does not copy the model.
        self._model = ref(model)
        self._settles_context = context_length is None
        self._depends_on_context = model.scheme.depends_on_context
        self._train_length = model.scheme.train_length or 1
        layers = model.config.layers
        self._windows = [model.scheme.of_layer(layer).window for layer in range(layers)]
        rooms = [room if window is None else min(room, 2 * window) for window in self._windows]
        self._keys = [_GrowingTensor(dim=2, room=room) for room in rooms]
        self._values = [_GrowingTensor(dim=2, room=room) for room in rooms]
        self._biases = [_GrowingTensor(dim=2, room=room) for room in rooms]
        self._positions = _GrowingTensor(dim=1, room=room)
        self._token_mask = _GrowingTensor(dim=1, room=room)
        self._affines: list[DistanceAffine | None] = [None] * layers
        self._forgotten: dict[int, int] = {}
        # By layer, and what follows them once the call has succeeded.
        self._segments: dict[int, _CurrentSegment] = {}
        self._next_segments: dict[int, _CurrentSegment] = {}

    def __repr__(self) -> str:
        return f"KeyValueCache(length={self.length}, context_length={self.context_length})"

    def begin(self, model: nn.Module, batch: int) -> None:
        """Raise if the model is not the one that created this cache, or the number of rows differs."""
        if self._model() is not model:
            raise ValueError(
                "cache was created by another model, whose keys and values do not fit this one: "
                "create it with new_cache() of the model that you call"
            )
        held = [
            *(it.memory for it in self._keys if it.memory is not None),
            *(it.keys for it in self._segments.values()),
        ]
        if self.length and held and held[0].shape[0] != batch:
            raise ValueError(
                f"tokens must have the {held[0].shape[0]} rows of the cache, got {batch}: "
                "create a cache for every batch with new_cache()"
            )
        if self.length == 0 and self._settles_context:
            # Set by a failed first call.
            self.context_length = None
        self._forgotten = {
            window: self._beyond(window) for window in self._windows if window is not None
        }

    def forgotten(self, layer: int) -> int:
        """The number of first tokens that no token of this call or a later one sees in a layer."""
        window = self._windows[layer]
        return 0 if window is None else self._forgotten[window]

    @property
    def has_forgotten(self) -> bool:
        """Whether layers with a window leave out tokens."""
        return any(self._forgotten.values())

    def _beyond(self, window: int) -> int:
        """The number of first tokens at `window` or more from any that follows in their row."""
        if not self.length or not self.keeps_positions:
            return max(0, self.length + 1 - window)
        positions, mask = self.positions_and_mask(self.length)
        seen = mask & (positions > last_positions(positions, mask) + 1 - window)
        indices = seen.any(0).nonzero()
        return int(indices[0]) if len(indices) else self.length

    def context_for(self, lengths: int | Tensor) -> int | Tensor:
        """The context length for a text that has now reached `lengths`: one number, or ``[B]``.

        Keys rotated for one context length cannot be used at another, so the first successful call fixes
        it, and a text that outgrows it raises.
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
                    "and this scheme depends on it: create the cache with context_length=..., the final "
                    "length of the text"
                )
        return self.context_length

    def append(
        self, layer: int, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add ``[B, H, new, D]`` and biases of the keys ``[B, H, new]``, if there are any, to a layer.

        Returns its keys, values and biases that are not forgotten. They count once all layers have them
        and `advance` is called, so a failed step can be repeated.
        """
        memory = self._keys[layer].memory
        self._check(key, memory if self.length else None)
        start, first = self.length, self.forgotten(layer)
        keys = self._keys[layer].write(key, start, first)
        values = self._values[layer].write(value, start, first)
        if bias is None:
            return keys, values, None
        # That of the last key is needed even if the key is forgotten.
        kept = max(0, min(first, start - 1))
        return keys, values, self._biases[layer].write(bias, start, kept)[..., first - kept :]

    def last_bias(self, layer: int) -> Tensor | None:
        """The bias ``[B, H, 1]`` of the last key so far; None if there is none."""
        return self._biases[layer].read(self.length, self.length - 1) if self.length else None

    def memory(self, layer: int) -> MemoryState | None:
        """The memory of a layer, None before the first token."""
        return self._segments[layer].state if layer in self._segments else None

    def append_segment(
        self,
        layer: int,
        key: Tensor,
        value: Tensor,
        segments: "SegmentLayout",
        state: MemoryState | None,
    ) -> tuple[Tensor, Tensor]:
        """Add ``[B, H, new, D]`` and the memory after them; return the keys and values to attend to."""
        held = self._segments.get(layer)
        self._check(key, None if held is None else held.keys)
        if held is not None:
            key, value = torch.cat([held.keys, key], 2), torch.cat([held.values, value], 2)
        kept = (segments.keep(it) for it in (key, value))
        self._next_segments[layer] = _CurrentSegment(state, *kept)
        return key, value

    def advance(self, tokens: int) -> None:
        """Count the tokens of a call, which all layers now have."""
        self.length += tokens
        self._segments, self._next_segments = self._next_segments, {}

    def _check(self, key: Tensor, held: Tensor | None) -> None:
        """Refuse keys with gradients, or of another dtype than those held."""
        if key.requires_grad:
            raise RuntimeError("a cache keeps no gradients: call the model under torch.no_grad()")
        if held is not None and held.dtype != key.dtype:
            raise TypeError(
                f"the cache holds keys in {held.dtype}, but the new ones are in {key.dtype}: do not "
                "change dtype or autocast while using a cache, or create a new one"
            )

    @property
    def keeps_positions(self) -> bool:
        """Whether positions are stored: not while the tokens are simply at 0, 1, 2, ..."""
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
        """A layer's gain and bias for at least `span` distances, recomputed when more are needed."""
        affine = self._affines[layer]
        if affine is None or affine.length < span:
            self._affines[layer] = affine = make(max(2 * span, self._keys[layer].room))
        return affine


def last_positions(positions: Tensor, mask: Tensor) -> Tensor:
    """The last position of each row ``[B, 1]``, far below all others in a row of nothing but padding."""
    return positions.masked_fill(~mask, BEFORE).amax(1, keepdim=True)


class _GrowingTensor:
    """A tensor that grows along a dimension and may lose its start, copied only when it is full."""

    def __init__(self, dim: int, room: int) -> None:
        self.dim = dim
        self.room = room
        self.memory: Tensor | None = None
        self._origin = 0  # the index of what the memory starts with

    def write(self, new: Tensor, start: int, first: int = 0) -> Tensor:
        """Write from `start` on, and return everything from `first` to the end of the new part.

        What is before `first` may be lost: a later `first` must not be smaller.
        """
        length = new.shape[self.dim]
        end = start + length
        if start == 0 and self.memory is not None:
            alike = new.select(self.dim, 0).shape == self.memory.select(self.dim, 0).shape
            if not alike or new.dtype != self.memory.dtype:
                # Left by a failed first call.
                self.memory = None
        if self.memory is None or self.memory.shape[self.dim] < end - self._origin:
            kept = start - first
            shape = list(new.shape)
            shape[self.dim] = max(kept + length, self.room, 2 * kept)
            # Not an inference tensor, which could be written to only in inference mode.
            with torch.inference_mode(False):
                memory = new.new_empty(shape)
            if self.memory is not None:
                memory.narrow(self.dim, 0, kept).copy_(self.read(start, first))
            self.memory, self._origin = memory, first
        self.memory.narrow(self.dim, start - self._origin, length).copy_(new)
        return self.read(end, first)

    def read(self, end: int, first: int = 0) -> Tensor:
        """Everything from `first` to before `end`."""
        assert self.memory is not None
        return self.memory.narrow(self.dim, first - self._origin, end - first)
