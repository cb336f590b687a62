"""Where queries and keys of one layer's call stand and what they see, from its mask and position ids.

What is decided here is decided without looking at values, so that it can be compiled; what would be
wrong is refused. Shapes: B batch, L queries, N keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention.numerics import holds_values
from .masks import COUNT, DOCUMENT, HIDDEN, INDEX, WINDOW, from_full_mask, require

# Beyond any position, and twice as far still an integer of 64 bits.
FAR = 2**61


@dataclass(frozen=True, eq=False)
class Placing:
    """Positions, visibility and what a query has seen so far."""

    visibility: dict[str, Any]  # arguments of the op
    counted: Tensor  # int64 [B, L]: the number of each query in its document, padding left out
    keys: int
    any_positions: bool  # whether distances may exceed the number of keys

    def check_boundaries(self, boundaries: Tensor | None) -> None:
        """Refuse ends of packed sequences, as flash attention takes them, that positions do not show."""
        if boundaries is None:
            return
        documents: Tensor = self.visibility["query_documents"]
        changes = documents.diff(dim=1) != 0
        begins = torch.nn.functional.pad(changes, (1, 0), value=True).flatten()
        require(
            begins[boundaries[:-1].long()].all(),
            "cu_seq_lens_q says that sequences are packed, and position_ids do not start again with "
            "every one of them: pass such position_ids, as DataCollatorWithFlattening makes them",
        )

    def span(self) -> int:
        """How many distances tables must cover."""
        positions: Tensor = self.visibility["key_positions"]
        if not self.any_positions or not holds_values(positions) or positions.numel() == 0:
            return self.keys
        return max(self.keys, int(positions.max()) + 1)


def placing(
    mask: Tensor | None,
    position_ids: Tensor | None,
    *,
    batch: int,
    queries: int,
    keys: int,
    window: int | None,
) -> Placing:
    """The placing of a call, or an error that says what is missing."""
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise ValueError(
            "scale_invariant attention was called without the mask that transformers makes for it, and "
            "without it nothing tells which tokens are padding or in the future: it works for causal "
            "language models that make their mask with transformers.masking_utils, not for encoders; "
            f"got attention_mask {_shown(mask)}"
        )
    if position_ids is None:
        raise ValueError(
            "scale_invariant attention was called without position_ids, and distances cannot be known: "
            "this model does not hand them to its attention layers; take another attn_implementation"
        )
    position_ids = _by_row(position_ids, batch, queries)
    if mask.dtype != torch.int64 or mask.shape[-1] != queries + keys:
        rows = from_full_mask(mask, batch, queries, keys, window)
    else:
        rows = mask[:, 0].expand(batch, -1, -1)
        _check_window(rows, window)
    shared: dict[str, Any] = {} if window is None else {"window": window}
    if queries == keys:
        return _uncached(rows[..., queries:], position_ids, shared)
    return _cached(rows, queries, position_ids, shared)


def _uncached(rows: Tensor, positions: Tensor, shared: dict[str, Any]) -> Placing:
    """Keys are the tokens of the queries, so position ids are known for both.

    A position that does not lie behind the one before it begins a document: so positions grow within
    each, and causality by position is causality by order.
    """
    visible = rows[:, DOCUMENT] != HIDDEN
    previous, begun = _previous(positions, visible)
    begins = visible & begun & (positions <= previous)
    of_mask = rows[:, DOCUMENT].masked_fill(~visible, 0).cummax(1).values
    documents = of_mask + begins.long().cumsum(1)
    first = positions.masked_fill(~visible, FAR).amin(1, keepdim=True)
    key_positions = (positions - first).masked_fill(~visible, 0)
    # Tokens of padding see nothing, and are not seen.
    query_documents = documents.masked_fill(~visible, HIDDEN)
    visibility = {
        **shared,
        "query_positions": key_positions,
        "key_positions": key_positions,
        "key_mask": visible,
        "query_documents": query_documents,
        "key_documents": documents,
    }
    if "window" in shared:
        _check_no_gaps(rows[:, INDEX], key_positions, documents, visible)
    counted = _count_in_documents(documents, visible)
    return Placing(visibility, counted, positions.shape[1], any_positions=True)


def _cached(rows: Tensor, queries: int, positions: Tensor, shared: dict[str, Any]) -> Placing:
    """Position ids of earlier keys are gone; they counted all tokens, or those that are not padding.

    Which of the two, the queries tell. Without padding between tokens it is the same.
    """
    of_queries, of_keys = rows[..., :queries], rows[..., queries:]
    seen = of_queries[:, DOCUMENT] != HIDDEN
    visible = of_keys[:, DOCUMENT] != HIDDEN
    by_count = ((positions == of_queries[:, COUNT]) | ~seen).all(1, keepdim=True)
    by_index = ((positions == of_queries[:, INDEX]) | ~seen).all(1, keepdim=True)
    require(
        (by_count | by_index).all(),
        "with a cache, position_ids must number the tokens from 0 on, with or without padding, as "
        "generate() does it: the positions of cached keys cannot be known otherwise; pass no "
        "position_ids, or call the model without past_key_values",
    )
    query_positions = torch.where(by_count, of_queries[:, COUNT], of_queries[:, INDEX])
    key_positions = torch.where(by_count, of_keys[:, COUNT], of_keys[:, INDEX])
    visibility = {
        **shared,
        "query_positions": query_positions,
        "key_positions": key_positions,
        "key_mask": visible,
        "query_documents": of_queries[:, DOCUMENT],
        "key_documents": of_keys[:, DOCUMENT],
    }
    if "window" in shared:
        _check_no_gaps(of_keys[:, INDEX], key_positions, of_keys[:, DOCUMENT], visible)
    counted = of_queries[:, COUNT].clamp(min=0)
    return Placing(visibility, counted, of_keys.shape[-1], any_positions=False)


def _previous(positions: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The position of the last visible token before each, and whether there is one."""
    numbers = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    last = numbers.masked_fill(~visible, -1).cummax(1).values
    before = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    return positions.gather(1, before.clamp(min=0)), before >= 0


def _count_in_documents(documents: Tensor, visible: Tensor) -> Tensor:
    """The number of each token in its document, from 0, padding left out."""
    real = visible.long()
    counted = real.cumsum(1)
    starts = torch.nn.functional.pad(documents.diff(dim=1) > 0, (1, 0), value=True)
    before = torch.where(starts, counted - real, 0).cummax(1).values
    return (counted - before - 1).clamp(min=0)


def _check_no_gaps(index: Tensor, positions: Tensor, documents: Tensor, visible: Tensor) -> None:
    """A window counts tokens and the op counts positions: in a document they must be the same."""
    offset = positions - index
    previous, begun = _previous(offset, visible)
    document, _ = _previous(documents, visible)
    even = (offset == previous) | (document != documents) | ~begun | ~visible
    require(
        even.all(),
        "with a sliding window, position_ids must grow by one from token to token, and padding must "
        "not lie between tokens: the window counts tokens, and distances are between positions",
    )


def _check_window(rows: Tensor, window: int | None) -> None:
    """The mask and the layer must mean the same window."""
    if (rows.shape[1] > WINDOW) != (window is not None):
        raise ValueError(
            f"the mask of this layer has {'a' if window is None else 'no'} window, and the layer says "
            f"sliding_window={window}: scale_invariant attention cannot tell which is meant; take "
            "another attn_implementation for this model"
        )
    if window is not None:
        require(
            (rows[:, WINDOW, :1] == window).all(),
            f"the mask of this layer has another window than the layer, sliding_window={window}",
        )


def _by_row(position_ids: Tensor, batch: int, queries: int) -> Tensor:
    if position_ids.ndim == 1:
        position_ids = position_ids.unsqueeze(0)
    if position_ids.ndim != 2 or position_ids.shape[-1] != queries:
        raise ValueError(
            f"position_ids must be [{batch} or 1, {queries}], one position a token, "
            f"got shape {tuple(position_ids.shape)}"
        )
    return position_ids.expand(batch, -1).long()


def _shown(mask: object) -> str:
    return f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
