"""The mask function, which describes a call's tokens in memory linear in their number.

transformers builds masks before the layers run, from indices: tokens are numbered in the order they were
fed, and the cache says which of them its keys are. The description travels to the layers in place of a
mask, as a tensor with four dimensions, ``[batch, 1, rows, queries + keys]`` of int64, with these rows:

    INDEX      the index of each token in its row of the batch, padding included
    COUNT      its index with padding left out
    DOCUMENT   the number of its document, or HIDDEN for padding
    WINDOW     the sliding window; absent if there is none

The last dimension exceeds the number of keys, so it cannot be mistaken for a mask of pairs. Users may
also pass a mask of pairs, ``[batch, 1, queries, keys]``, which is converted if rows can express it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention.numerics import holds_values

INDEX, COUNT, DOCUMENT, WINDOW = range(4)
HIDDEN = -1

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


def from_full_mask(mask: Tensor, batch: int, queries: int, keys: int, window: int | None) -> Tensor:
    """The rows INDEX, COUNT and DOCUMENT of a mask of pairs, ``[batch, 3, queries + keys]``.

    The mask must be causal, with padding, documents and a window. All pairs are compared, which takes
    as much memory as the mask itself.

    >>> pairs = torch.ones(4, 4, dtype=torch.bool).tril()
    >>> pairs[2:, :2] = False  # the last two tokens are another document
    >>> from_full_mask(pairs[None, None], 1, 4, 4, None)[0, 2, 4:]
    tensor([0, 0, 1, 1])
    """
    allowed = _allowed_pairs(mask, batch, queries, keys)
    index = torch.arange(keys, device=mask.device)
    query_index = index[keys - queries :]
    visible = allowed.any(1)
    if queries == keys:
        documents = _documents_of_pairs(allowed, visible)
    else:
        documents = torch.zeros_like(visible).long()
        require(
            visible[:, -1].any(),
            "attention_mask with four dimensions must show the last key to a query, because queries are "
            "the last tokens except in a static cache: pass a mask [batch, tokens], or another cache",
        )
    counts = visible.long().cumsum(1) - 1
    rebuilt = (query_index.unsqueeze(1) >= index) & visible.unsqueeze(1)
    rebuilt = rebuilt & (documents[:, query_index].unsqueeze(2) == documents.unsqueeze(1))
    if window is not None:
        rebuilt = rebuilt & (query_index.unsqueeze(1) - index < window)
    # What padding sees does not matter.
    same = (rebuilt == allowed) | ~visible[:, query_index].unsqueeze(2)
    require(
        same.all(),
        "attention_mask with four dimensions must be causal, with padding, contiguous documents and "
        f"the layer's window (sliding_window={window}) alone: pass a mask [batch, tokens], or "
        "position_ids that restart with every document",
    )
    documents = documents.masked_fill(~visible, HIDDEN)
    rows = torch.stack([index.expand(batch, -1), counts, documents], dim=1)
    return torch.cat([rows[..., query_index], rows], dim=-1)


def require(condition: Tensor, message: str) -> None:
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
    require(
        ~mask_function(batch_index, head, earlier, later).any(),
        "scale_invariant attention is causal, and this model's mask shows later tokens, as in encoders, "
        "cross-attention and blocks of image tokens: use another attn_implementation for it",
    )
    starts = ~mask_function(batch_index, head, later, earlier).expand(batch, -1)
    return torch.nn.functional.pad(starts.long().cumsum(1), (1, 0))


def _documents_of_pairs(allowed: Tensor, visible: Tensor) -> Tensor:
    """Numbered documents ``[batch, keys]``: a token that cannot see the last visible one starts one."""
    before = previous_visible(visible)
    sees = allowed.gather(2, before.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (visible & (before >= 0) & ~sees).long().cumsum(1)


def previous_visible(visible: Tensor) -> Tensor:
    """The index of the last visible token before each token, or -1."""
    index = torch.arange(visible.shape[1], device=visible.device).expand_as(visible)
    last = index.masked_fill(~visible, -1).cummax(1).values
    return torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)


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
    require(
        ((pairs == 0) | (pairs <= torch.finfo(mask.dtype).min / 2)).all(),
        "attention_mask of floats must hold 0 for visible pairs and the dtype's minimum or -inf for "
        "hidden ones, and no other bias",
    )
    return pairs == 0
