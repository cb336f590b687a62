"""Positions and visibility of the tokens of a forward pass.

transformers builds masks before the layers run, from indices: tokens are numbered in the order they were
fed, and the cache says which of them its keys are. Our mask function describes them in memory linear in
their number, with a tensor of four dimensions, ``[batch, 1, rows, queries + keys]`` of int64:

    INDEX      the index of each token in its row of the batch, padding included
    COUNT      its index with padding left out
    DOCUMENT   the number of its document, or HIDDEN for padding
    WINDOW     the sliding window; absent if there is none

The last dimension exceeds the number of keys, so it cannot be mistaken for a mask of pairs. Users may
also pass a mask of pairs, ``[batch, 1, queries, keys]``, which is converted if rows can express it.

The layers receive the mask and position ids, which give their layout. Decisions never depend on values,
so that the code can be compiled; inconsistent values are refused. Shapes: B batch, L queries, N keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Visibility
from ..attention.numerics import holds_values
from ..model.inputs import FAR, default_positions
from ..schemes import TokenPositions

INDEX, COUNT, DOCUMENT, WINDOW = range(4)
HIDDEN = -1
MEMO = "scale_invariant_layouts"

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    *,
    mask_function: MaskFunction,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **ignored: Any,
) -> Tensor:
    """The rows of a call; transformers calls this instead of building a mask of pairs."""
    if use_vmap:
        raise NotImplementedError(
            "scale_invariant attention is causal, and this model changes its mask (or_mask_function or "
            "and_mask_function, as for images or encoders): use another attn_implementation for it"
        )
    keys = torch.arange(kv_length, device=device) + kv_offset
    documents = _documents_of_mask_function(mask_function, batch_size, keys)
    counts, documents = _without_padding(attention_mask, keys, documents)
    # Queries attend to their own tokens, so they are among the keys.
    query_index = torch.arange(q_length, device=device) + q_offset - kv_offset
    rows = [keys.expand(batch_size, -1), counts, documents]
    parts = [torch.cat([row[:, query_index], row], dim=1) for row in rows]
    if local_size is not None:
        parts.append(torch.full_like(parts[0], local_size))
    return torch.stack(parts, dim=1).unsqueeze(1)


def _from_full_mask(
    mask: Tensor, batch: int, queries: int, keys: int, window: int | None
) -> Tensor:
    """The rows INDEX, COUNT and DOCUMENT of a mask of pairs, ``[batch, 3, queries + keys]``.

    The mask must be causal, with padding, documents and a window. All pairs are compared, which takes
    as much memory as the mask itself.

    >>> pairs = torch.ones(4, 4, dtype=torch.bool).tril()
    >>> pairs[2:, :2] = False  # the last two tokens are another document
    >>> _from_full_mask(pairs[None, None], 1, 4, 4, None)[0, 2, 4:]
    tensor([0, 0, 1, 1])
    """
    allowed = _allowed_pairs(mask, batch, queries, keys)
    index = torch.arange(keys, device=mask.device)
    query_index = index[keys - queries :]
    visible = allowed.any(1)
    if queries == keys:
        # A token that cannot see the last visible one starts a document.
        before = _previous_visible(visible)
        sees = allowed.gather(2, before.clamp(min=0).unsqueeze(2)).squeeze(2)
        documents = (visible & (before >= 0) & ~sees).long().cumsum(1)
    else:
        documents = torch.zeros_like(visible).long()
        _require(
            visible[:, -1].any(),
            "attention_mask with four dimensions must show the last key to a query, because queries are "
            "the last tokens except in a static cache: pass a mask [batch, tokens], or another cache",
        )
    counts = visible.long().cumsum(1) - 1
    distance = query_index.unsqueeze(1) - index
    rebuilt = (distance >= 0) & visible.unsqueeze(1)
    rebuilt = rebuilt & (documents[:, query_index].unsqueeze(2) == documents.unsqueeze(1))
    if window is not None:
        rebuilt = rebuilt & (distance < window)
    # What padding sees does not matter.
    same = (rebuilt == allowed) | ~visible[:, query_index].unsqueeze(2)
    _require(
        same.all(),
        "attention_mask with four dimensions must be causal, with padding, contiguous documents and "
        f"the layer's window (sliding_window={window}) alone: pass a mask [batch, tokens], or "
        "position_ids that restart with every document",
    )
    documents = documents.masked_fill(~visible, HIDDEN)
    rows = torch.stack([index.expand(batch, -1), counts, documents], dim=1)
    return torch.cat([rows[..., query_index], rows], dim=-1)


def _require(condition: Tensor, message: str) -> None:
    """Raise unless `condition` holds: immediately on a CPU, asynchronously where a check would stall."""
    if condition.is_meta:
        return
    if holds_values(condition) and condition.device.type == "cpu":
        if not bool(condition):
            raise ValueError(message)
    else:
        torch._assert_async(condition, message)


def _documents_of_mask_function(mask_function: MaskFunction, batch: int, keys: Tensor) -> Tensor:
    """Numbered runs of tokens in which each sees the one before it, ``[batch, keys]``.

    These are the sequences of a packed batch, or the chunks of chunked attention.
    """
    batch_index = torch.arange(batch, device=keys.device).unsqueeze(-1)
    head = torch.zeros_like(batch_index)
    earlier, later = keys[:-1].unsqueeze(0), keys[1:].unsqueeze(0)
    _require(
        ~mask_function(batch_index, head, earlier, later).any(),
        "scale_invariant attention is causal, and this model's mask shows later tokens, as in encoders, "
        "cross-attention and blocks of image tokens: use another attn_implementation for it",
    )
    starts = ~mask_function(batch_index, head, later, earlier).expand(batch, -1)
    return pad(starts.long().cumsum(1), (1, 0))


def _previous_visible(visible: Tensor) -> Tensor:
    """The index of the last visible token before each token, or -1."""
    index = torch.arange(visible.shape[1], device=visible.device).expand_as(visible)
    last = index.masked_fill(~visible, -1).cummax(1).values
    return pad(last[:, :-1], (1, 0), value=-1)


def _without_padding(
    attention_mask: Tensor | None, keys: Tensor, documents: Tensor
) -> tuple[Tensor, Tensor]:
    """The rows COUNT and DOCUMENT, ``[batch, keys]`` each."""
    if attention_mask is None:
        return keys.expand_as(documents), documents
    real = attention_mask.to(documents.device, torch.bool)
    if real.ndim != 2 or real.shape[0] != documents.shape[0]:
        raise ValueError(
            f"attention_mask must be [{len(documents)}, tokens], got shape {tuple(real.shape)}"
        )
    # A static cache has room for tokens that the mask does not cover yet.
    counts = real.long().cumsum(1) - 1
    covered = keys.clamp(max=real.shape[1] - 1)
    visible = real[:, covered] & (keys < real.shape[1])
    return counts[:, covered], documents.masked_fill(~visible, HIDDEN)


def _allowed_pairs(mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """Visible pairs, bool ``[batch, queries, keys]``: True in a bool mask, 0 in a float mask."""
    fits = mask.shape[0] in (1, batch) and tuple(mask.shape[1:]) == (1, queries, keys)
    if not fits or not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        raise ValueError(
            f"attention_mask must be [batch, tokens], or [{batch} or 1, 1, {queries}, {keys}] of bool "
            f"or float, got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    pairs = mask[:, 0].expand(batch, -1, -1)
    if mask.dtype == torch.bool:
        return pairs
    _require(
        ((pairs == 0) | (pairs <= torch.finfo(mask.dtype).min / 2)).all(),
        "attention_mask of floats must hold 0 for visible pairs and the dtype's minimum or -inf for "
        "hidden ones, and no other bias",
    )
    return pairs == 0


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """The tokens of a forward pass as all layers with one window see them."""

    visibility: Visibility
    positions: TokenPositions  # index of each query in its document, padding left out
    keys: int
    any_positions: bool  # whether distances may exceed the number of keys

    @property
    def span(self) -> int:
        """A bound that no distance of visible pairs reaches."""
        _, positions = self.visibility.positions
        if not self.any_positions or not holds_values(positions) or positions.numel() == 0:
            bound = self.keys
        else:
            bound = max(self.keys, int(positions.max()) + 1)
        window = self.visibility.window
        return bound if window is None else min(bound, window)

    def within(self, window: int | None) -> "TokenLayout":
        """The layout of a layer whose scheme has a window, besides that of the model."""
        own = self.visibility.window
        if window is None or (own is not None and own <= window):
            return self
        return replace(self, visibility=replace(self.visibility, window=window))

    def check_boundaries(self, boundaries: Tensor | None) -> None:
        """Refuse boundaries of packed sequences, as flash attention takes them, without positions."""
        if boundaries is None:
            return
        documents = self.visibility.query_documents
        assert documents is not None
        starts = pad(documents.diff(dim=1) != 0, (1, 0), value=True).flatten()
        _require(
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
    sizes = (batch, queries, keys, window)
    # A compiler merges equal computations itself; inference tensors do not record changes.
    if torch.compiler.is_compiling() or mask.is_inference() or position_ids.is_inference():
        return _computed_layout(mask, position_ids, *sizes)
    versions = (mask._version, position_ids._version)
    memo = mask.__dict__.setdefault(MEMO, {})
    known = memo.get(sizes)
    if known is None or known[0] is not position_ids or known[1] != versions:
        known = (position_ids, versions, _computed_layout(mask, position_ids, *sizes))
        memo[sizes] = known
    layout: TokenLayout = known[2]
    return layout


def _computed_layout(
    mask: Tensor, position_ids: Tensor, batch: int, queries: int, keys: int, window: int | None
) -> TokenLayout:
    positions = position_ids.expand(batch, -1).long()
    if mask.dtype != torch.int64 or mask.shape[-1] != queries + keys:
        rows = _from_full_mask(mask, batch, queries, keys, window)
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
    _require(
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
    before = _previous_visible(visible)
    return values.gather(1, before.clamp(min=0)), before >= 0


def _check_no_gaps(index: Tensor, positions: Tensor, documents: Tensor, visible: Tensor) -> None:
    """Refuse documents in which positions and indices differ: windows count tokens, the op positions."""
    offset = positions - index
    previous, exists = _previous(offset, visible)
    document, _ = _previous(documents, visible)
    even = (offset == previous) | (document != documents) | ~exists | ~visible
    _require(
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
        _require(
            (rows[:, WINDOW, :1] == window).all(),
            f"the mask of this layer has another window than the layer, sliding_window={window}",
        )
