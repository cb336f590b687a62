"""The inputs of a forward pass: arguments checked, and the layout of tokens that all layers share.

Shapes: B batch, L tokens of the call, N tokens including those of a cache.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..arguments import integer
from ..attention import Visibility
from ..attention.numerics import holds_values
from ..schemes import TokenPositions
from ._cache import KeyValueCache, last_positions
from .context_parallel import ContextParallel, SharedRows

# Angles are computed in float64, which represents integers up to this.
FARTHEST = 2**53
# Beyond any position, and twice this is still a 64-bit integer.
FAR = 2**61


def check_inputs(
    vocab_size: int,
    tokens: Tensor,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    token_mask: Tensor | None = None,
    context_length: int | Tensor | None = None,
    cache: KeyValueCache | None = None,
    context_parallel: ContextParallel | None = None,
) -> None:
    """Check every argument of a call before anything runs."""
    _check_integers("tokens", tokens)
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        shape = tuple(tokens.shape)
        raise ValueError(
            f"tokens must be [batch, length] with at least one token, got shape {shape}"
        )
    # On a GPU the embedding refuses bad tokens.
    if tokens.numel() and _readable(tokens):
        least, most = (int(extreme) for extreme in tokens.long().aminmax())
        if least < 0 or most >= vocab_size:
            wrong = least if least < 0 else most
            raise ValueError(f"tokens must be in 0 .. {vocab_size - 1}, got {wrong}")
    for name, rows in (("positions", positions), ("documents", documents)):
        if rows is None:
            continue
        _check_integers(name, rows)
        if rows.shape not in (tokens.shape, tokens.shape[1:]):
            raise ValueError(
                f"{name} must be [{tokens.shape[1]}] or {list(tokens.shape)} like tokens, "
                f"got shape {tuple(rows.shape)}"
            )
    if positions is not None and positions.numel() and _readable(positions):
        farthest = int(positions.long().abs().amax())
        if not 0 <= farthest <= FARTHEST:
            raise ValueError(f"positions must be at most {FARTHEST} from 0, got {farthest}")
    if token_mask is not None:
        if not isinstance(token_mask, Tensor) or token_mask.dtype != torch.bool:
            kind = token_mask.dtype if isinstance(token_mask, Tensor) else type(token_mask).__name__
            raise TypeError(f"token_mask must be a bool tensor, False for padding; got {kind}")
        if token_mask.shape != tokens.shape:
            raise ValueError(
                f"token_mask must be {list(tokens.shape)} like tokens, "
                f"got shape {tuple(token_mask.shape)}"
            )
    check_context_length(context_length, tokens.shape[0])
    if cache is None:
        return
    if context_parallel is not None:
        raise ValueError("context_parallel cannot be given with a cache, which one process holds")
    if not isinstance(cache, KeyValueCache):
        raise TypeError(f"cache must come from new_cache(), got {type(cache).__name__}")
    if documents is not None:
        raise ValueError("documents cannot be given with a cache, which holds one document per row")
    if context_length is not None:
        raise ValueError(
            "context_length is set when the cache is created: new_cache(context_length=...)"
        )


def check_context_length(context_length: int | Tensor | None, batch: int | None = None) -> None:
    """Refuse all but a positive integer, or one per row; without `batch`, any number of rows."""
    if isinstance(context_length, Tensor):
        _check_integers("context_length", context_length)
        rows = "batch" if batch is None else batch
        if context_length.ndim != 1 or (batch is not None and len(context_length) != batch):
            raise ValueError(
                f"context_length must be a number or [{rows}], one per row, "
                f"got shape {tuple(context_length.shape)}"
            )
        if _readable(context_length) and bool((context_length < 1).any()):
            raise ValueError(f"context_length must be at least 1, got {context_length.tolist()}")
    elif context_length is not None:
        integer("context_length", context_length, at_least=1)


def _check_integers(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(tensor).__name__}")
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got {tensor.dtype}")


def _readable(tensor: Tensor) -> bool:
    """Whether values can be checked: reading those of a GPU would stall it."""
    return tensor.device.type == "cpu" and holds_values(tensor)


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """Positions of the tokens of a forward pass and what they see, the same for layers alike."""

    tokens: TokenPositions
    visibility: Visibility
    span: int  # all distances of visible pairs are below it

    def within(self, window: int, forgotten: int = 0) -> "TokenLayout":
        """The layout of layers with a window, whose cache no longer holds the first keys."""
        visibility = self.visibility
        if forgotten:
            visibility = visibility.tile(slice(None), slice(forgotten, None))
        visibility = replace(visibility, window=window)
        return replace(self, visibility=visibility, span=min(self.span, window))

    def part(self, rows: SharedRows) -> "TokenLayout":
        """The layout of one rank's part of the tokens, for attention to those of all ranks."""
        tokens, seen = self.tokens, self.visibility
        context = tokens.context_length
        if isinstance(context, Tensor) and context.shape[1] > 1:
            context = rows.part(context)
        visibility = replace(
            seen,
            key_positions=_part(seen.key_positions, rows),
            key_mask=_part(seen.key_mask, rows),
            key_documents=_part(seen.key_documents, rows),
        )
        tokens = replace(tokens, positions=rows.part(tokens.positions), context_length=context)
        return TokenLayout(tokens, visibility, self.span)


def _part(tensor: Tensor | None, rows: SharedRows) -> Tensor | None:
    return None if tensor is None else rows.part(tensor)


def token_layout(
    tokens: Tensor,
    positions: Tensor | None,
    documents: Tensor | None,
    token_mask: Tensor | None,
    context_length: int | Tensor | None,
    is_causal: bool = True,
) -> TokenLayout:
    """The layout of a call without a cache; arguments as in ``GPT.hidden_states``."""
    length = tokens.shape[1]
    if positions is None and documents is None and token_mask is None:
        indices = torch.arange(length, device=tokens.device)
        context = length if context_length is None else _per_row(context_length)
        known = TokenPositions(indices, context, is_causal)
        return TokenLayout(known, Visibility(is_causal=is_causal), length)
    runs = None if documents is None else document_runs(documents.expand_as(tokens).long())
    counted = positions is None
    if positions is None:
        positions = default_positions(runs, token_mask)
    else:
        positions = positions.expand_as(tokens).long()
    first, lengths = document_extents(positions, runs, token_mask)
    # The op counts positions by itself, in each document of a row too.
    needs_positions = not counted or token_mask is not None
    visibility = Visibility(
        key_positions=from_first(positions, first, token_mask) if needs_positions else None,
        key_mask=token_mask,
        key_documents=runs,
        is_causal=is_causal,
    )
    context = lengths if context_length is None else _per_row(context_length)
    span = length if counted else longest(lengths)
    return TokenLayout(TokenPositions(positions, context, is_causal), visibility, span)


def cached_layout(
    tokens: Tensor, positions: Tensor | None, token_mask: Tensor | None, cache: KeyValueCache
) -> TokenLayout:
    """The layout of tokens that follow those of a cache, in which their positions are stored."""
    start, end = cache.length, cache.length + tokens.shape[1]
    if positions is None and token_mask is None and not cache.keeps_positions:
        indices = torch.arange(start, end, device=tokens.device)
        context = _per_row(cache.context_for(end))
        return TokenLayout(TokenPositions(indices, context), Visibility(), end)
    if not cache.keeps_positions:
        earlier = torch.arange(start, device=tokens.device).expand(tokens.shape[0], -1)
        cache.keep_positions(earlier, torch.ones_like(earlier, dtype=torch.bool), start=0)
    if token_mask is None:
        token_mask = torch.ones_like(tokens, dtype=torch.bool)
    earlier_positions, earlier_mask = cache.positions_and_mask(start)
    if positions is None:
        positions = _following(token_mask, earlier_positions, earlier_mask)
    elif cache.has_forgotten:
        _check_rising(positions.expand_as(tokens), token_mask, earlier_positions, earlier_mask)
    positions = positions.expand_as(tokens).long()
    cache.keep_positions(positions, token_mask, start)
    key_positions, key_mask = cache.positions_and_mask(end)
    first, lengths = document_extents(key_positions, None, key_mask)
    visibility = Visibility(
        query_positions=from_first(positions, first, token_mask),
        key_positions=from_first(key_positions, first, key_mask),
        key_mask=key_mask,
    )
    context = _per_row(cache.context_for(lengths.squeeze(1)))
    return TokenLayout(TokenPositions(positions, context), visibility, longest(lengths))


def _following(token_mask: Tensor, earlier: Tensor, earlier_mask: Tensor) -> Tensor:
    """Positions ``[B, L]`` after earlier ones ``[B, N]``; a row with only padding so far starts at 0."""
    counted = token_mask.long().cumsum(1)
    if earlier.shape[1] == 0:
        return (counted - 1).clamp(min=0)
    last = last_positions(earlier, earlier_mask)
    begun = earlier_mask.any(1, keepdim=True)
    return torch.where(begun, last + counted, (counted - 1).clamp(min=0))


def _check_rising(
    positions: Tensor, token_mask: Tensor, earlier: Tensor, earlier_mask: Tensor
) -> None:
    """Refuse positions before those of the cache, whose neighbours it may no longer hold."""
    if bool((token_mask & (positions <= last_positions(earlier, earlier_mask))).any()):
        raise ValueError(
            "positions must be above those in the cache, whose layers with a window keep only the last "
            f"keys, got {positions.flatten()[:8].tolist()}...: use a new cache"
        )


def default_positions(runs: Tensor | None, token_mask: Tensor | None) -> Tensor:
    """Positions ``[B, L]`` that count the tokens of each document, padding left out.

    `runs` are documents numbered by :func:`document_runs`; `token_mask` is bool ``[B, L]``, False for
    padding, which gets the position of the token before it. One of the two may be None.

    >>> default_positions(torch.tensor([[0, 0, 0, 1, 1]]), None)
    tensor([[0, 1, 2, 0, 1]])
    >>> default_positions(None, torch.tensor([[False, False, True, True]]))
    tensor([[0, 0, 0, 1]])
    """
    if token_mask is None:
        assert runs is not None
        token_mask = torch.ones_like(runs, dtype=torch.bool)
    real = token_mask.long()
    counted = real.cumsum(1)
    if runs is None:
        return (counted - 1).clamp(min=0)
    starts = runs.diff(dim=1, prepend=torch.full_like(runs[:, :1], -1)) > 0
    # The count before the first token of each document.
    before = torch.where(starts, counted - real, 0).cummax(1).values
    return (counted - before - 1).clamp(min=0)


def document_runs(documents: Tensor) -> Tensor:
    """Documents ``[B, L]`` numbered in order; a number that appears again later is a new document.

    >>> document_runs(torch.tensor([[7, 7, 5, 5, 7]]))
    tensor([[0, 0, 1, 1, 2]])
    """
    return (documents.diff(dim=1, prepend=documents[:, :1]) != 0).long().cumsum(1)


def document_extents(
    positions: Tensor, runs: Tensor | None, token_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The first position of every token's document, and the document's length in positions.

    Both are ``[B, 1 or L]``; padding does not count, and a document of only padding has length 1.

    >>> document_extents(torch.tensor([[5, 6, 7, 0, 1]]), torch.tensor([[0, 0, 0, 1, 1]]), None)
    (tensor([[5, 5, 5, 0, 0]]), tensor([[3, 3, 3, 2, 2]]))
    """
    first, last = positions, positions
    if token_mask is not None:
        first = first.masked_fill(~token_mask, FAR)
        last = last.masked_fill(~token_mask, -FAR)
    if runs is None:
        first, last = first.amin(1, keepdim=True), last.amax(1, keepdim=True)
    else:
        zeros = torch.zeros_like(positions)
        first = zeros.scatter_reduce(1, runs, first, "amin", include_self=False).gather(1, runs)
        last = zeros.scatter_reduce(1, runs, last, "amax", include_self=False).gather(1, runs)
    return first, (last - first + 1).clamp(min=1)


def from_first(positions: Tensor, first: Tensor, token_mask: Tensor | None) -> Tensor:
    """Positions ``[B, N]`` relative to the first of their document, padding at 0.

    Attention depends only on distances, and its tables are as long as the largest position.
    """
    relative = positions - first
    return relative if token_mask is None else relative.masked_fill(~token_mask, 0)


def _per_row(lengths: int | Tensor) -> int | Tensor:
    """One number, or ``[B]`` as ``[B, 1]``."""
    return lengths.unsqueeze(-1) if isinstance(lengths, Tensor) else lengths


def longest(lengths: Tensor) -> int:
    """The largest of some lengths; 1 if there are none."""
    return int(lengths.amax()) if lengths.numel() else 1
