"""Where the tokens of a call stand, from the attention mask and the position ids of transformers.

Shapes: B batch, L tokens of the call, N tokens with those of a cache before them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Visibility
from ..model.inputs import FAR, SequenceLayout, default_positions, sequence_layout
from ..schemes import TokenPositions


@dataclass(frozen=True, eq=False)
class Arguments:
    """What a call says about its tokens, as our GPT takes it; None is the default of each."""

    token_mask: Tensor | None = None  # bool [B, N], with padding
    positions: Tensor | None = None  # [B, L], other than counted
    documents: Tensor | None = None  # [B, L], of a packed batch

    @property
    def counted(self) -> bool:
        """Whether positions are counted from the mask, which is all that a cache can go on from."""
        return self.positions is None and self.documents is None


def read_arguments(
    tokens: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: int
) -> Arguments:
    """The mask ``[B, N]`` and the position ids of `tokens` ``[B, L]`` that follow `past` others.

    Without a mask and a cache, position ids that start again begin another document, as in batches that
    were flattened.
    """
    given = attention_mask is not None
    mask = _token_mask(attention_mask, tokens, past)
    if position_ids is None:
        return Arguments(mask)
    positions = _positions(position_ids, tokens)
    real = None if mask is None else mask[:, past:]
    if _same(positions, _counted(tokens, mask, past)[:, past:], real):
        return Arguments(mask)
    if past:
        raise ValueError(
            "position_ids must count the tokens that attention_mask shows where past_key_values is "
            f"used, got {_short(position_ids)} behind {past} tokens: leave them out"
        )
    if not given:
        runs = (positions.diff(dim=1, prepend=positions[:, :1] - 1) <= 0).cumsum(1)
        if int(runs.amax()) > 0:
            same = _same(positions, default_positions(runs, None), None)
            return Arguments(None, None if same else positions, runs)
    _check_rising(positions, real)
    return Arguments(mask, positions)


def first_placing(
    tokens: Tensor, arguments: Arguments, context_length: int | Tensor | None
) -> SequenceLayout:
    """The placing of tokens that nothing is before."""
    return sequence_layout(
        tokens, arguments.positions, arguments.documents, arguments.token_mask, context_length
    )


def later_placing(
    tokens: Tensor, arguments: Arguments, past: int, context_length: int | Tensor | None
) -> SequenceLayout:
    """The placing of tokens that follow `past` others in a cache."""
    end = past + tokens.shape[1]
    mask = arguments.token_mask
    reached = reached_lengths(end, mask) if context_length is None else context_length
    by_row = reached.unsqueeze(-1) if isinstance(reached, Tensor) else reached
    if mask is None:
        counted = torch.arange(past, end, device=tokens.device)
        return SequenceLayout(TokenPositions(counted, by_row), Visibility(), end)
    positions = default_positions(None, mask)
    visibility = Visibility(
        query_positions=positions[:, past:], key_positions=positions, key_mask=mask
    )
    return SequenceLayout(TokenPositions(positions[:, past:], by_row), visibility, end)


def reached_lengths(end: int, token_mask: Tensor | None) -> int | Tensor:
    """How long the texts are: one number, or integers ``[B]``."""
    return end if token_mask is None else token_mask.sum(1).clamp(min=1)


def _token_mask(attention_mask: Tensor | None, tokens: Tensor, past: int) -> Tensor | None:
    """The mask as bool, None if it hides nothing."""
    if attention_mask is None:
        return None
    shape = (tokens.shape[0], past + tokens.shape[1])
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != shape:
        kind = (
            f"shape {tuple(attention_mask.shape)}"
            if isinstance(attention_mask, Tensor)
            else type(attention_mask).__name__
        )
        raise ValueError(
            f"attention_mask must be {list(shape)}, 0 for padding, with the tokens of "
            f"past_key_values; got {kind}. Which keys a query sees follows from positions: masks by "
            "query and key are not taken"
        )
    mask = attention_mask.bool()
    return None if bool(mask.all()) else mask


def _positions(position_ids: Tensor, tokens: Tensor) -> Tensor:
    rows, length = tokens.shape
    fits = position_ids.shape in ((length,), (1, length), (rows, length))
    if position_ids.is_floating_point() or position_ids.dtype == torch.bool or not fits:
        raise ValueError(
            f"position_ids must be integers {[rows, length]} or {[1, length]}, got "
            f"{position_ids.dtype} of shape {tuple(position_ids.shape)}"
        )
    return position_ids.expand_as(tokens).long()


def _counted(tokens: Tensor, mask: Tensor | None, past: int) -> Tensor:
    if mask is not None:
        return default_positions(None, mask)
    return torch.arange(past + tokens.shape[1], device=tokens.device).expand(len(tokens), -1)


def _same(first: Tensor, second: Tensor, mask: Tensor | None) -> bool:
    """Whether positions agree, but for padding."""
    different = first != second
    return not bool((different if mask is None else different & mask).any())


def _check_rising(positions: Tensor, mask: Tensor | None) -> None:
    """Refuse positions that do not rise, at which a token would see later ones."""
    hidden = positions if mask is None else positions.masked_fill(~mask, -FAR)
    before = hidden.cummax(1).values[:, :-1]
    falls = hidden[:, 1:] <= before
    if bool((falls if mask is None else falls & mask[:, 1:]).any()):
        raise ValueError(
            f"position_ids must rise along each row, got {_short(positions)}; for several documents "
            "in a row leave attention_mask out"
        )


def _short(positions: Tensor) -> str:
    return str(positions.flatten()[:8].tolist()) + ("..." if positions.numel() > 8 else "")
