"""Which keys a query sees, and at what distance: for whole calls and for tiles.

A key is visible to a query when it is not masked, lies in the same document, is not in the future
(if causal), and lies inside the window or is a sink.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from ._coordinates import (
    BEYOND,
    FARTHEST_COORDINATE,
    check_use,
    checked_coordinates,
    squared_distance,
)
from .numerics import check_dense, holds_values, plain_number

# Positions are from -FARTHEST to FARTHEST - 1, so that 64 bits hold sums of a few distances.
FARTHEST = 2**61
# The names of the tensors that place tokens, and how far from 0 their values may be.
PLACES = {
    "query_positions": FARTHEST,
    "key_positions": FARTHEST,
    "query_coordinates": FARTHEST_COORDINATE,
    "key_coordinates": FARTHEST_COORDINATE,
}
# A tuple, because a union would be built at every use.
INTEGERS = (int, torch.SymInt)
# Up to this many values are read one by one, which takes less time than looking for their extremes.
FEW = 64


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Visibility:
    """Positions or coordinates of queries and keys, and which pairs may see each other.

    The public functions take these fields as keywords, whose docstring describes them; a model
    builds one object per forward pass and hands it to every layer.

    :meth:`checked` brings every tensor to ``[1 or B, length]``, coordinates to ``[1 or B, n, length]``.
    The matrices of pairs broadcast leading dimensions, so that one object can describe a batch or a
    single row of it.

    >>> Visibility(window=2).with_positions(2, 4, torch.device("cpu")).visible
    tensor([[[False,  True,  True, False],
             [False, False,  True,  True]]])
    """

    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    key_mask: Tensor | None = None
    query_documents: Tensor | None = None
    key_documents: Tensor | None = None
    query_coordinates: Tensor | None = None
    key_coordinates: Tensor | None = None
    is_causal: bool = True
    window: int | None = None
    sinks: int = 0

    def checked(
        self, batch: int, query_length: int, key_length: int, device: torch.device
    ) -> "Visibility":
        """Check every field, and bring tensors to int64 (the mask: bool) ``[1 or batch, length]``.

        Afterwards both positions are given or neither, both documents or neither, and both coordinates,
        ``[1 or batch, n, length]``, or neither.
        """
        if not isinstance(self.is_causal, bool):
            raise TypeError(f"is_causal must be True or False, got {self.is_causal!r}")
        window = None if self.window is None else _count("window", self.window, 1)
        sinks = _count("sinks", self.sinks, 0)

        if (
            self.query_positions is None
            and self.key_positions is None
            and self.key_mask is None
            and self.query_documents is None
            and self.key_documents is None
            and self.query_coordinates is None
            and self.key_coordinates is None
            and window == self.window
            and sinks == self.sinks
        ):
            # Short calls: building another one would take a noticeable share of their time.
            return self

        def row(name: str, tensor: Tensor | None, length: int) -> Tensor | None:
            return _integer_row(name, tensor, batch, length, device)

        query_positions = row("query_positions", self.query_positions, query_length)
        key_positions = row("key_positions", self.key_positions, key_length)
        query_coordinates, key_coordinates = self._checked_coordinates(
            batch, query_length, key_length, device, sinks
        )
        check_places(self)
        query_documents = row("query_documents", self.query_documents, query_length)
        key_documents = row("key_documents", self.key_documents, key_length)
        if key_documents is None and query_documents is not None:
            raise ValueError(
                "query_documents was given without key_documents: pass both, or key_documents "
                "alone when the queries are the last of the keys"
            )
        if key_documents is not None and query_documents is None:
            query_documents = _last(key_documents, query_length, "documents")
        _check_key_mask(self.key_mask, batch, key_length, device)
        visibility = replace(
            self,
            query_positions=query_positions,
            key_positions=key_positions,
            query_documents=query_documents,
            key_documents=key_documents,
            query_coordinates=query_coordinates,
            key_coordinates=key_coordinates,
            window=window,
            sinks=sinks,
        )
        if (query_positions is None) != (key_positions is None):
            return visibility.with_positions(query_length, key_length, device)
        return visibility

    def _checked_coordinates(
        self, batch: int, query_length: int, key_length: int, device: torch.device, sinks: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The coordinates of queries and keys, ``[1 or batch, n, length]``."""
        if self.query_coordinates is None and self.key_coordinates is None:
            return None, None
        given = {name: getattr(self, name) is not None for name in PLACES}
        check_use(given, self.is_causal, sinks)
        of_keys = checked_coordinates(
            "key_coordinates", self.key_coordinates, batch, key_length, device
        )
        of_queries = checked_coordinates(
            "query_coordinates", self.query_coordinates, batch, query_length, device
        )
        assert of_keys is not None
        if of_queries is None:
            of_queries = _last(of_keys, query_length, "coordinates")
        if of_queries.shape[1] != of_keys.shape[1]:
            raise ValueError(
                "query_coordinates and key_coordinates must have the same number of coordinates per "
                f"token, got {of_queries.shape[1]} and {of_keys.shape[1]}"
            )
        return of_queries, of_keys

    def with_positions(
        self, query_length: int, key_length: int, device: torch.device
    ) -> "Visibility":
        """Fill in default positions: keys from 0, and queries as the last of the keys.

        Tokens with coordinates get them too, but neither distance nor causality depends on them then.
        """
        query_positions, key_positions = self.query_positions, self.key_positions
        if key_positions is None:
            key_positions = torch.arange(key_length, device=device).unsqueeze(0)
            if query_positions is None:
                start = key_length - query_length
                query_positions = torch.arange(start, key_length, device=device).unsqueeze(0)
        elif query_positions is None:
            query_positions = _last(key_positions, query_length, "positions")
        else:
            return self
        return replace(self, query_positions=query_positions, key_positions=key_positions)

    @property
    def positions(self) -> tuple[Tensor, Tensor]:
        """Positions of queries and of keys, which must have been given or filled in."""
        assert self.query_positions is not None
        assert self.key_positions is not None
        return self.query_positions, self.key_positions

    @property
    def rows(self) -> int:
        """Number of distinct batch rows: 1 if all share positions, mask and documents."""
        tensors = (getattr(self, name) for name in TENSORS)
        return max((tensor.shape[0] for tensor in tensors if tensor is not None), default=1)

    def row(self, index: int) -> "Visibility":
        """One batch row, its tensors ``[length]``."""
        return self._map(lambda _, tensor: tensor[min(index, tensor.shape[0] - 1)])

    def tile(self, queries: slice, keys: slice, backwards: bool = False) -> "Visibility":
        """Some queries, which may run backwards, and some keys."""

        def cut(name: str, tensor: Tensor) -> Tensor:
            if name.startswith("key"):
                return tensor[..., keys]
            return tensor[..., queries].flip(-1) if backwards else tensor[..., queries]

        return self._map(cut)

    def collapsed(self) -> "Visibility":
        """Hold what is equal in all rows once, and drop a mask that hides nothing.

        This reads values: do not use it while tracing, or where reading is slow.
        """

        def collapse(name: str, tensor: Tensor) -> Tensor | None:
            if tensor.shape[0] > 1 and bool((tensor == tensor[:1]).all()):
                tensor = tensor[:1]
            return None if name == "key_mask" and bool(tensor.all()) else tensor

        return self._map(collapse)

    def _map(self, change: Callable[[str, Tensor], Tensor | None]) -> "Visibility":
        """Apply a change to every tensor that is given."""
        given = ((name, getattr(self, name)) for name in TENSORS)
        changed: dict[str, Any] = {
            name: change(name, tensor) for name, tensor in given if tensor is not None
        }
        return replace(self, **changed)

    @property
    def coordinates(self) -> tuple[Tensor, Tensor] | None:
        """Coordinates of queries and of keys; None if tokens have positions."""
        if self.query_coordinates is None or self.key_coordinates is None:
            return None
        return self.query_coordinates, self.key_coordinates

    @property
    def dimensions(self) -> int:
        """The number of dimensions: that of the coordinates, or 1."""
        return 1 if self.key_coordinates is None else self.key_coordinates.shape[-2]

    @property
    def distance(self) -> Tensor:
        """The distance of every pair, ``[..., Lq, Lk]``; 0 where causality hides the key.

        An integer between positions, and float64 between coordinates.
        """
        if self.coordinates is not None:
            return squared_distance(*self.coordinates).double().sqrt()
        query_positions, key_positions = self.positions
        offset = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
        return offset.clamp_min(0) if self.is_causal else offset.abs()

    @property
    def sink(self) -> Tensor | None:
        """Which keys are sinks, ``[..., 1, Lk]``; None without sinks."""
        if self.sinks == 0:
            return None
        return (self.positions[1] < self.sinks).unsqueeze(-2)

    @property
    def visible(self) -> Tensor:
        """Which pairs are visible, bool ``[..., Lq, Lk]`` (leading dimensions broadcast)."""
        query_positions, key_positions = self.positions
        queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)
        visible = queries >= keys if self.is_causal else torch.ones_like(queries == keys)
        if self.window is not None:
            near, sink = self._near(self.window), self.sink
            visible = visible & (near if sink is None else near | sink)
        if self.query_documents is not None and self.key_documents is not None:
            same = self.query_documents.unsqueeze(-1) == self.key_documents.unsqueeze(-2)
            visible = visible & same
        if self.key_mask is not None:
            visible = visible & self.key_mask.unsqueeze(-2)
        return visible

    def _near(self, window: int) -> Tensor:
        """Which pairs are closer than a window."""
        if self.coordinates is None:
            return self.distance < window
        return squared_distance(*self.coordinates) < min(window, BEYOND) ** 2


class VisibilityKeywords(TypedDict, total=False):
    """The fields of :class:`Visibility` as keywords of a function; a test keeps the two equal."""

    query_positions: Tensor | None
    key_positions: Tensor | None
    key_mask: Tensor | None
    query_documents: Tensor | None
    key_documents: Tensor | None
    query_coordinates: Tensor | None
    key_coordinates: Tensor | None
    is_causal: bool
    window: int | None
    sinks: int


TENSORS = tuple(field.name for field in fields(Visibility) if field.type == Tensor | None)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, INTEGERS):
        number = plain_number(value)
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        value = number
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    # Operators take 64 bits, and all distances are smaller.
    limited: int = min(value, 2 * FARTHEST)
    return limited


def _integer_row(
    name: str, tensor: Tensor | None, batch: int, length: int, device: torch.device
) -> Tensor | None:
    """A tensor [length] or [batch, length] of integers as int64 [1 or batch, length]."""
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(tensor).__name__}")
    check_dense(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got {tensor.dtype}")
    if tensor.shape not in ((length,), (batch, length)):
        raise ValueError(
            f"{name} must be [{length}] or [{batch}, {length}], got shape {tuple(tensor.shape)}"
        )
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device} but query is on {device}")
    return tensor.long() if tensor.ndim == 2 else tensor.long().unsqueeze(0)


def check_places(visibility: Visibility) -> None:
    """Raise for positions or coordinates that are too far from 0, provided their values can be read."""
    for name, farthest in PLACES.items():
        tensor = getattr(visibility, name)
        # Smaller integers cannot be too large.
        if tensor is None or torch.iinfo(tensor.dtype).max < farthest or tensor.numel() == 0:
            continue
        if tensor.device.type != "cpu" or _is_watched(tensor):
            return
        if tensor.numel() <= FEW and tensor.ndim == 1:
            values = tensor.tolist()
        else:
            # Among unsigned integers torch finds no extremes; the upper half of uint64 becomes negative.
            signed = tensor if tensor.dtype.is_signed else tensor.long()
            values = [int(it) for it in signed.aminmax()]
            if tensor.dtype == torch.uint64:
                values = [it % 2**64 for it in values]
        least, greatest = min(values), max(values)
        if least < -farthest or greatest >= farthest:
            power = farthest.bit_length() - 1
            got = f"{least} to {greatest}"
            raise ValueError(f"{name} must be from -2**{power} to 2**{power} - 1, got {got}")


def _is_watched(tensor: Tensor) -> bool:
    """Whether something traces or transforms operations, and must not see a value being read."""
    return (
        # First: a compiler does not trace the others.
        not holds_values(tensor)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._get_tracing_state() is not None
    )


def _last(of_keys: Tensor, query_length: int, kind: str) -> Tensor:
    """The positions, documents or coordinates of the last keys, for the queries."""
    if query_length > of_keys.shape[-1]:
        raise ValueError(
            f"query_{kind} must be given: there are {query_length} queries, more than the "
            f"{of_keys.shape[-1]} key_{kind} they would be the last of"
        )
    return of_keys[..., of_keys.shape[-1] - query_length :]


def _check_key_mask(
    key_mask: Tensor | None, batch: int, key_length: int, device: torch.device
) -> None:
    if key_mask is None:
        return
    if isinstance(key_mask, Tensor):
        check_dense("key_mask", key_mask)
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        kind = key_mask.dtype if isinstance(key_mask, Tensor) else type(key_mask).__name__
        raise TypeError(f"key_mask must be a bool tensor, False hides a key; got {kind}")
    if key_mask.shape != (batch, key_length):
        raise ValueError(
            f"key_mask must be [batch, keys] = [{batch}, {key_length}], "
            f"got shape {tuple(key_mask.shape)}"
        )
    if key_mask.device != device:
        raise ValueError(f"key_mask is on {key_mask.device} but query is on {device}")
