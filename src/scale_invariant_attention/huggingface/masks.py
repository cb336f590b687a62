"""The mask function: which tokens a call's queries and keys are, in memory linear in their number.

transformers makes masks before the layers run, from indices: tokens are numbered as they were fed, and a
cache tells which of them its keys are. What attention needs of that travels to the layers as a mask
does, a tensor with four dimensions, ``[batch, 1, rows, queries + keys]`` of int64, with these rows:

    INDEX      the number of each token in its row of the batch, padding included
    COUNT      its number among those that are not padding
    DOCUMENT   the number of its document, or HIDDEN for padding
    WINDOW     the sliding window; without one there is no such row

The last dimension is longer than the number of keys, so it cannot be taken for a mask of pairs.
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
    """What transformers calls instead of making a mask of pairs; the arguments are its own."""
    if use_vmap:
        raise NotImplementedError(
            "scale_invariant attention is causal, and this model changes its mask with a function of "
            "its own (or_mask_function or and_mask_function, as for images or bidirectional "
            "attention): take another attn_implementation for it"
        )
    queries = torch.arange(q_length, device=device) + q_offset
    keys = torch.arange(kv_length, device=device) + kv_offset
    documents = _documents(mask_function, batch_size, keys)
    counts, documents = _without_padding(attention_mask, keys, documents)
    # Queries are among the keys: their own tokens are attended to as well.
    place = queries - kv_offset
    rows = [keys.expand(batch_size, -1), counts, documents]
    parts = [torch.cat([row[:, place], row], dim=1) for row in rows]
    if local_size is not None:
        parts.append(torch.full_like(parts[0], local_size))
    return torch.stack(parts, dim=1).unsqueeze(1)


def _documents(mask_function: MaskFunction, batch: int, keys: Tensor) -> Tensor:
    """The runs of tokens of which each sees the one before it, numbered, ``[batch, keys]``.

    For packed sequences these are the sequences, for chunked attention the chunks.
    """
    numbers = torch.arange(batch, device=keys.device).unsqueeze(-1)
    head = torch.zeros_like(numbers)
    earlier, later = keys[:-1].unsqueeze(0), keys[1:].unsqueeze(0)
    require(
        ~mask_function(numbers, head, earlier, later).any(),
        "scale_invariant attention is causal, and this model's mask lets tokens see later ones, as in "
        "encoders, cross-attention and blocks of image tokens: take another attn_implementation for it",
    )
    begins = ~mask_function(numbers, head, later, earlier).expand(batch, -1)
    return torch.nn.functional.pad(begins.long().cumsum(1), (1, 0))


def _without_padding(
    attention_mask: Tensor | None, keys: Tensor, documents: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens counted without padding, and documents with padding HIDDEN, ``[batch, keys]`` each."""
    if attention_mask is None:
        return keys.expand_as(documents), documents
    shown = attention_mask.to(documents.device, torch.bool)
    if shown.ndim != 2 or shown.shape[0] != documents.shape[0]:
        raise ValueError(
            f"attention_mask must be [batch, tokens] with batch {documents.shape[0]}, "
            f"got shape {tuple(shown.shape)}"
        )
    # A static cache has room for tokens that the mask does not reach yet.
    counts = shown.long().cumsum(1) - 1
    within = keys < shown.shape[1]
    reached = keys.clamp(max=shown.shape[1] - 1)
    visible = shown[:, reached] & within
    return counts[:, reached], documents.masked_fill(~visible, HIDDEN)


def require(condition: Tensor, message: str) -> None:
    """Refuse what a tensor says is wrong: at once on a CPU, later where looking would stall a device."""
    if condition.is_meta:
        return
    if holds_values(condition) and condition.device.type == "cpu":
        if not bool(condition):
            raise ValueError(message)
    else:
        torch._assert_async(condition, message)
