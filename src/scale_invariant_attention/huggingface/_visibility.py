"""Positions and visibility of a forward pass, from the mask and position ids that its layers receive.

Decisions never depend on values, so that the code can be compiled; inconsistent values are refused.
Shapes: B batch, L queries, N keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Visibility
from ..attention.numerics import holds_values
from ..model.inputs import FAR, default_positions
from ..schemes import TokenPositions
from ._masks import (
    COUNT,
    DOCUMENT,
    HIDDEN,
    INDEX,
    WINDOW,
    from_full_mask,
    previous_visible,
    require,
)

MEMO = "scale_invariant_layouts"


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """The tokens of a forward pass as all layers with one window see them."""

    visibility: Visibility
    positions: TokenPositions  # index of each query in its document, padding left out
    keys: int
    any_positions: bool  # whether distances may exceed the number of keys

    @property
    def span(self) -> int:
        """A bound that no distance reaches."""
        _, positions = self.visibility.positions
        if not self.any_positions or not holds_values(positions) or positions.numel() == 0:
            return self.keys
        return max(self.keys, int(positions.max()) + 1)

    def check_boundaries(self, boundaries: Tensor | None) -> None:
        """Refuse boundaries of packed sequences, as flash attention takes them, without positions."""
        if boundaries is None:
            return
        documents = self.visibility.query_documents
        assert documents is not None
        changes = documents.diff(dim=1) != 0
        starts = torch.nn.functional.pad(changes, (1, 0), value=True).flatten()
        require(
            starts[boundaries[:-1].long()].all(),
            "cu_seq_lens_q marks packed sequences, with each of which position_ids must restart, as "
            "those of DataCollatorWithFlattening do",
        )


def token_layout(
    mask: Tensor | None,
    position_ids: Tensor | None,
    batch: int,
    queries: int,
    keys: int,
    window: int | None,
) -> TokenLayout:
    """The layout of a call, computed by the first layer of a forward pass and reused by the others.

    Layers with the same window share one mask object, which carries the result.
    """
    mask, position_ids = _checked(mask, position_ids, batch, queries)
    sizes = (batch, queries, keys, window)
    # A compiler merges equal computations itself; inference tensors do not record changes.
    if torch.compiler.is_compiling() or mask.is_inference() or position_ids.is_inference():
        return _computed_layout(mask, position_ids, *sizes)
    versions = (mask._version, position_ids._version)
    memo = mask.__dict__.setdefault(MEMO, {})
    known = memo.get(sizes)
    if known is None or known[0] is not position_ids or known[1] != versions:
        layout = _computed_layout(mask, position_ids, *sizes)
        known = memo[sizes] = (position_ids, versions, layout)
    return known[2]  # type: ignore[no-any-return]


def _checked(
    mask: Tensor | None, position_ids: Tensor | None, batch: int, queries: int
) -> tuple[Tensor, Tensor]:
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        shown = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(
            f"scale_invariant attention was called without the mask of transformers.masking_utils, got "
            f"{shown}: it works for causal language models that make their mask there, not for encoders"
        )
    if position_ids is None:
        raise ValueError(
            "scale_invariant attention was called without position_ids, which this model does not pass "
            "to its attention layers: use another attn_implementation"
        )
    if position_ids.ndim not in (1, 2) or position_ids.shape[-1] != queries:
        raise ValueError(
            f"position_ids must be [{batch} or 1, {queries}], got shape {tuple(position_ids.shape)}"
        )
    return mask, position_ids


def _computed_layout(
    mask: Tensor, position_ids: Tensor, batch: int, queries: int, keys: int, window: int | None
) -> TokenLayout:
    positions = position_ids.expand(batch, -1).long()
    if mask.dtype != torch.int64 or mask.shape[-1] != queries + keys:
        rows = from_full_mask(mask, batch, queries, keys, window)
    else:
        # A copy: a view would keep the mask alive, which holds this layout.
        rows = mask[:, 0].clone().expand(batch, -1, -1)
        _check_window(rows, window)
    if queries == keys:
        return _uncached_layout(rows[..., queries:], positions, window)
    return _cached_layout(rows, queries, positions, window)


def _uncached_layout(rows: Tensor, positions: Tensor, window: int | None) -> TokenLayout:
    """The layout of a call in which the keys are the queries' own tokens.

    A position not greater than the one before it starts a document: so positions rise within each
    document, and causality by position is causality by order.
    """
    visible = rows[:, DOCUMENT] != HIDDEN
    previous, exists = _previous(positions, visible)
    starts = visible & exists & (positions <= previous)
    mask_documents = rows[:, DOCUMENT].masked_fill(~visible, 0).cummax(1).values
    documents = mask_documents + starts.long().cumsum(1)
    first = positions.masked_fill(~visible, FAR).amin(1, keepdim=True)
    key_positions = (positions - first).masked_fill(~visible, 0)
    if window is not None:
        _check_no_gaps(rows[:, INDEX], key_positions, documents, visible)
    visibility = Visibility(
        query_positions=key_positions,
        key_positions=key_positions,
        key_mask=visible,
        # Padding sees nothing, and is not seen.
        query_documents=documents.masked_fill(~visible, HIDDEN),
        key_documents=documents,
        window=window,
    )
    index = default_positions(documents, visible)
    length = positions.shape[1]
    return TokenLayout(visibility, TokenPositions(index, length), length, any_positions=True)


def _cached_layout(
    rows: Tensor, queries: int, positions: Tensor, window: int | None
) -> TokenLayout:
    """The layout of a call with a cache, which does not keep the position ids of its keys.

    They counted either all tokens or all but padding; the position ids of the queries show which.
    Without padding between tokens both are the same.
    """
    query_rows, key_rows = rows[..., :queries], rows[..., queries:]
    real = query_rows[:, DOCUMENT] != HIDDEN
    visible = key_rows[:, DOCUMENT] != HIDDEN
    by_count = ((positions == query_rows[:, COUNT]) | ~real).all(1, keepdim=True)
    by_index = ((positions == query_rows[:, INDEX]) | ~real).all(1, keepdim=True)
    require(
        (by_count | by_index).all(),
        "with a cache, position_ids must number the tokens from 0, with or without padding, because "
        "those of cached keys are unknown: pass no position_ids, or no past_key_values",
    )
    key_positions = torch.where(by_count, key_rows[:, COUNT], key_rows[:, INDEX])
    if window is not None:
        _check_no_gaps(key_rows[:, INDEX], key_positions, key_rows[:, DOCUMENT], visible)
    visibility = Visibility(
        query_positions=torch.where(by_count, query_rows[:, COUNT], query_rows[:, INDEX]),
        key_positions=key_positions,
        key_mask=visible,
        query_documents=query_rows[:, DOCUMENT],
        key_documents=key_rows[:, DOCUMENT],
        window=window,
    )
    index = query_rows[:, COUNT].clamp(min=0)
    tokens = TokenPositions(index, index.shape[-1])
    return TokenLayout(visibility, tokens, key_rows.shape[-1], any_positions=False)


def _previous(values: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The value of the last visible token before each token, and whether there is one."""
    before = previous_visible(visible)
    return values.gather(1, before.clamp(min=0)), before >= 0


def _check_no_gaps(index: Tensor, positions: Tensor, documents: Tensor, visible: Tensor) -> None:
    """Refuse documents in which positions and indices differ: windows count tokens, the op positions."""
    offset = positions - index
    previous, exists = _previous(offset, visible)
    document, _ = _previous(documents, visible)
    even = (offset == previous) | (document != documents) | ~exists | ~visible
    require(
        even.all(),
        "with a sliding window, position_ids must rise by one from token to token, and padding must "
        "not lie between tokens: the window counts tokens, and distances are between positions",
    )


def _check_window(rows: Tensor, window: int | None) -> None:
    """Refuse a mask and a layer with different windows."""
    if (rows.shape[1] > WINDOW) != (window is not None):
        raise ValueError(
            f"the mask of this layer has {'a' if window is None else 'no'} window, and the layer has "
            f"sliding_window={window}: use another attn_implementation for this model"
        )
    if window is not None:
        require(
            (rows[:, WINDOW, :1] == window).all(),
            f"the mask of this layer has another window than the layer, sliding_window={window}",
        )
