"""The inputs of a call of our GPT in transformers' form: attention mask, position ids and cache.

Keys rotated for one context length cannot be used at another, so the first call fixes the context length
of a cache, as with our own. It is an attribute of the cache object, so copies of the cache keep it.

Shapes: B batch, L tokens of the call, N tokens including those of a cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache

from ..attention import DistanceAffine, Visibility
from ..model.inputs import FAR, TokenLayout, default_positions, token_layout
from ..schemes import LogN, ModelScheme, TokenPositions

NOTES = "scale_invariant_notes"


@dataclass(frozen=True, eq=False)
class TokenArguments:
    """Arguments of our GPT that describe the tokens of a call; None is each one's default."""

    token_mask: Tensor | None = None  # bool [B, N], if there is padding
    positions: Tensor | None = None  # [B, L], if they do not count the tokens
    documents: Tensor | None = None  # [B, L], if several are packed in a row

    @property
    def counted(self) -> bool:
        """Whether positions count the tokens, as a cache requires."""
        return self.positions is None and self.documents is None

    def layout(self, tokens: Tensor, past: int, context_length: int | Tensor | None) -> TokenLayout:
        """The layout of tokens ``[B, L]`` that follow `past` others in a cache."""
        if past == 0:
            return token_layout(
                tokens, self.positions, self.documents, self.token_mask, context_length
            )
        end = past + tokens.shape[1]
        reached = self.reached_lengths(end) if context_length is None else context_length
        per_row = reached.unsqueeze(-1) if isinstance(reached, Tensor) else reached
        new, visibility = _counted_positions(tokens, self.token_mask, past), Visibility()
        if self.token_mask is not None:
            keys = default_positions(None, self.token_mask)
            visibility = Visibility(
                query_positions=new, key_positions=keys, key_mask=self.token_mask
            )
        return TokenLayout(TokenPositions(new, per_row), visibility, end)

    def reached_lengths(self, end: int) -> int | Tensor:
        """The lengths of the texts after a call: one number, or integers ``[B]``."""
        return end if self.token_mask is None else self.token_mask.sum(1).clamp(min=1)


def token_arguments(
    tokens: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: int
) -> TokenArguments:
    """Read the mask ``[B, N]`` and the position ids of `tokens` ``[B, L]`` that follow `past` others.

    Without a mask and a cache, position ids that restart begin a document, as in flattened batches.
    """
    mask = _token_mask(attention_mask, tokens, past)
    if position_ids is None:
        return TokenArguments(mask)
    positions = _checked_positions(position_ids, tokens)
    real = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask[:, past:]
    if not bool((real & (positions != _counted_positions(tokens, mask, past))).any()):
        return TokenArguments(mask)
    if past:
        raise ValueError(
            "position_ids must count the tokens that attention_mask shows if past_key_values is used, "
            f"got {positions.flatten()[:8].tolist()}... after {past} tokens: leave them out"
        )
    if attention_mask is None:
        runs = (positions.diff(dim=1, prepend=positions[:, :1] - 1) <= 0).cumsum(1)
        if int(runs.amax()) > 0:
            same = torch.equal(positions, default_positions(runs, None))
            return TokenArguments(None, None if same else positions, runs)
    shown = positions.masked_fill(~real, -FAR)
    rises = shown[:, 1:] > shown.cummax(1).values[:, :-1]
    if bool((real[:, 1:] & ~rises).any()):
        # A token would see later ones.
        raise ValueError(
            f"position_ids must rise along each row, got {positions.flatten()[:8].tolist()}...; for "
            "several documents per row leave out attention_mask"
        )
    return TokenArguments(mask, positions)


def _token_mask(attention_mask: Tensor | None, tokens: Tensor, past: int) -> Tensor | None:
    """The mask as bool; None if it hides nothing."""
    if attention_mask is None:
        return None
    shape = (tokens.shape[0], past + tokens.shape[1])
    given = getattr(attention_mask, "shape", type(attention_mask).__name__)
    if not isinstance(attention_mask, Tensor) or given != shape:
        raise ValueError(
            f"attention_mask must be {list(shape)}, 0 for padding, including the tokens of "
            f"past_key_values, got {given}: which keys a query sees follows from positions"
        )
    mask = attention_mask.bool()
    return None if bool(mask.all()) else mask


def _checked_positions(position_ids: Tensor, tokens: Tensor) -> Tensor:
    rows, length = tokens.shape
    fits = position_ids.shape in ((length,), (1, length), (rows, length))
    if position_ids.is_floating_point() or position_ids.dtype == torch.bool or not fits:
        raise ValueError(
            f"position_ids must be integers {[rows, length]} or {[1, length]}, got "
            f"{position_ids.dtype} of shape {tuple(position_ids.shape)}"
        )
    return position_ids.expand_as(tokens).long()


def _counted_positions(tokens: Tensor, mask: Tensor | None, past: int) -> Tensor:
    """Positions of `tokens` that count them and those before, padding left out."""
    if mask is not None:
        return default_positions(None, mask)[:, past:]
    return torch.arange(past, past + tokens.shape[1], device=tokens.device)


@dataclass
class Notes:
    """The context length of a cache, and tables that later calls reuse."""

    context_length: int | Tensor | None = None
    affines: dict[int, DistanceAffine] = field(default_factory=dict)


class TransformersCache:
    """A cache of transformers during one call, which adds `new` tokens to `past` others."""

    def __init__(self, cache: Cache, past: int, new: int) -> None:
        self._cache, self._past, self._end = cache, past, past + new
        self._first = past == 0
        notes = getattr(cache, NOTES, None)
        if self._first or not isinstance(notes, Notes):
            notes = Notes()
            setattr(cache, NOTES, notes)
        self._notes = notes

    def append(
        self, layer: int, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add ``[B, H, new, D]`` and biases ``[B, H, new]``, if any, to a layer; return all so far.

        The bits of a bias follow the value of its token in the cache, which may be copied and reordered.
        """
        size = value.shape[-1]
        if bias is not None:
            value = torch.cat([value, bias.unsqueeze(-1).contiguous().view(value.dtype)], -1)
        keys, values = self._cache.update(key, value, layer)
        # A static cache also returns its unused memory.
        keys, values = keys.narrow(2, 0, self._end), values.narrow(2, 0, self._end)
        return keys, values[..., :size], None if bias is None else _biases(values[..., size:])

    def last_bias(self, layer: int) -> Tensor | None:
        """The bias ``[B, H, 1]`` of the last key so far; None if there is none."""
        if self._first:
            return None
        values = self._cache.layers[layer].values[:, :, self._past - 1 : self._past]
        return _biases(values[..., -(torch.float64.itemsize // values.dtype.itemsize) :])

    def forgotten(self, layer: int) -> int:
        """None are left out: the cache keeps all keys, also of layers with a window."""
        return 0

    def affine(
        self, layer: int, span: int, make: Callable[[int], DistanceAffine]
    ) -> DistanceAffine:
        """A layer's gain and bias for at least `span` distances, rebuilt when `span` outgrows them."""
        # Stored tables carry no gradients.
        if self._first or torch.is_grad_enabled():
            return make(span)
        affine = self._notes.affines.get(layer)
        if affine is None or affine.length < span:
            self._notes.affines[layer] = affine = make(2 * span)
        return affine

    def context_length(
        self, scheme: ModelScheme, lengths: int | Tensor, given: int | Tensor | None, rows: int
    ) -> int | Tensor | None:
        """The context length of the call, after which the `rows` texts have `lengths` tokens.

        None means the default of a call without a cache. A cache filled for another length is refused.
        """
        if not scheme.depends_on_context:
            return None
        if self._first:
            self._notes.context_length = lengths if given is None else given
            return given
        settled = self._notes.context_length
        if settled is None:
            settled = given
        if settled is None:
            raise ValueError(
                "past_key_values was filled elsewhere, and this scheme depends on the context length: "
                "pass context_length=..., the length it was filled for"
            )
        if isinstance(settled, Tensor) and len(settled) != rows and rows % len(settled) == 0:
            # The rows of a cache may have been repeated, as for several samples per prompt.
            settled = settled.repeat_interleave(rows // len(settled))
        # Up to the training length NTK and YaRN change nothing, so all shorter lengths are equivalent.
        scales = [each.query_scale for each in scheme.pattern]
        counts_all = any(isinstance(it, LogN) and it.depends_on_context for it in scales)
        least = 1 if counts_all else scheme.train_length or 1
        if given is not None and _any(_at_least(given, least) != _at_least(settled, least)):
            raise ValueError(
                f"context_length must be {settled}, for which past_key_values was filled, got {given}: "
                "keys of one context length cannot be used at another"
            )
        settled = _at_least(settled, least)
        if _any(lengths > settled):
            raise ValueError(
                f"the text has outgrown the context length of past_key_values, {settled}: pass "
                "context_length=..., its final length, from the first call on, as generate() does"
            )
        return settled


def _biases(bits: Tensor) -> Tensor:
    """The biases whose bits these are, float64 ``[B, H, N]``."""
    return bits.contiguous().view(torch.float64).squeeze(-1)


def _at_least(length: int | Tensor, least: int) -> int | Tensor:
    return length.clamp(min=least) if isinstance(length, Tensor) else max(length, least)


def _any(condition: bool | Tensor) -> bool:
    return bool(condition.any()) if isinstance(condition, Tensor) else condition
