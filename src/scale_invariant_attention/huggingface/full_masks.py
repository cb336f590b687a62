"""Masks of pairs ``[batch, 1, queries, keys]``, which users may give, brought to the form of our own.

Only masks that our own form can say are taken: causal, with padding, documents and a window. They are
compared pair by pair, so these calls take memory for all pairs, as the mask itself does.
"""

import torch
from torch import Tensor

from .masks import HIDDEN, require


def from_full_mask(mask: Tensor, batch: int, queries: int, keys: int, window: int | None) -> Tensor:
    """The rows index, count and document of a mask of pairs, ``[batch, 3, queries + keys]``.

    >>> pairs = torch.ones(4, 4, dtype=torch.bool).tril()
    >>> pairs[2:, :2] = False  # the last two tokens are another document
    >>> from_full_mask(pairs[None, None], 1, 4, 4, None)[0, 2, 4:]
    tensor([0, 0, 1, 1])
    """
    allowed = _allowed(mask, batch, queries, keys)
    token = torch.arange(keys, device=mask.device)
    asking = token[keys - queries :]
    visible = allowed.any(1)
    if queries != keys:
        require(
            visible[:, -1].any(),
            "attention_mask with four dimensions must show the last key to a query, as the queries are "
            "taken to be the last tokens, which in a static cache they are not: pass a mask [batch, "
            "tokens], or another cache",
        )
    documents = (
        _documents(allowed, visible) if queries == keys else torch.zeros_like(visible).long()
    )
    counts = visible.long().cumsum(1) - 1
    rebuilt = (asking.unsqueeze(1) >= token) & visible.unsqueeze(1)
    rebuilt = rebuilt & (documents[:, asking].unsqueeze(2) == documents.unsqueeze(1))
    if window is not None:
        rebuilt = rebuilt & (asking.unsqueeze(1) - token < window)
    # What padding sees does not matter.
    same = (rebuilt == allowed) | ~visible[:, asking].unsqueeze(2)
    require(
        same.all(),
        "attention_mask with four dimensions must be causal, with padding, whole documents in a row, "
        f"and the layer's window (sliding_window={window}): scale_invariant attention takes no other "
        "pattern; pass a mask [batch, tokens], or position_ids that start again with every document",
    )
    documents = documents.masked_fill(~visible, HIDDEN)
    rows = torch.stack([token.expand(batch, -1), counts, documents], dim=1)
    return torch.cat([rows[..., asking], rows], dim=-1)


def _allowed(mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """Which pairs are visible, ``[batch, queries, keys]``: of bool masks True, of float masks 0."""
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
        "hidden ones: scale_invariant attention takes no other bias",
    )
    return pairs == 0


def _documents(allowed: Tensor, visible: Tensor) -> Tensor:
    """A token that does not see the visible one before it begins a document."""
    batch, length = visible.shape
    token = torch.arange(length, device=visible.device).expand(batch, -1)
    last = token.masked_fill(~visible, -1).cummax(1).values
    before = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    sees = allowed.gather(2, before.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (visible & (before >= 0) & ~sees).long().cumsum(1)
