"""Loss of a model, in nats: per token of a batch, by context length, and by position in a document."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..data import SameTokens, TokenSource, document_batches, document_spans
from ..theory import Estimate

# Tokens per call of the model, unless a window is longer.
TOKENS_AT_ONCE = 16_384


class Scored(Protocol):
    """A model that returns the loss of every token, as a GPT does."""

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        """Losses ``[B, L]`` of targets ``[B, L]``."""


@torch.no_grad()
def token_losses(
    model: Scored, tokens: Tensor, targets: Tensor, device: torch.device | str
) -> Tensor:
    """Losses ``[B, L]``, float64 on the CPU."""
    losses = model(tokens.to(device), targets.to(device), reduction="none")
    return losses.double().cpu()


def rows_at_once(length: int) -> int:
    """Number of windows of a length to score in one call.

    >>> rows_at_once(256), rows_at_once(65_536)
    (64, 1)
    """
    return max(1, TOKENS_AT_ONCE // length)


@dataclass(frozen=True)
class LengthLoss:
    """The mean loss of `tokens` targets with at most `length - 1` tokens before them."""

    length: int
    loss: float
    standard_error: float | None
    tokens: int


def loss_by_length(
    model: Scored,
    tokens: SameTokens,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda scored: None,
) -> list[LengthLoss]:
    """The loss of a model at every length of `tokens`.

    The standard error is over stretches of the longest length, the same for all lengths; a single
    stretch has none. `progress` is called with the number of tokens scored so far, out of
    ``len(tokens.lengths) * tokens.count``.

    >>> from scale_invariant_attention.data import standard_library
    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> tokens = SameTokens(standard_library("validation"), (32, 64), at_most=128)
    >>> [row.length for row in loss_by_length(GPT(GPTConfig.preset("mini")), tokens)]
    [32, 64]
    """
    return loss_by_length_and_position(model, tokens, device=device, progress=progress)[0]


@dataclass(frozen=True)
class PositionLoss:
    """The mean loss of the targets with `start` to `stop - 1` tokens before them."""

    start: int
    stop: int
    loss: float
    standard_error: float | None
    documents: int


def position_bins(length: int, per_doubling: int = 2) -> list[int]:
    """Edges of bins that grow with position, from 1 to `length + 1`.

    >>> position_bins(64, per_doubling=1)
    [1, 2, 4, 8, 16, 32, 65]
    """
    doublings = range(1, per_doubling * length.bit_length())
    inner = {round(2 ** (step / per_doubling)) for step in doublings}
    return sorted({1, length + 1} | {edge for edge in inner if edge < length})


def loss_by_length_and_position(
    model: Scored,
    tokens: SameTokens,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda scored: None,
) -> tuple[list[LengthLoss], list[PositionLoss]]:
    """The loss at every length of `tokens`, and in bins of position in windows of the longest length.

    Arguments are those of :func:`loss_by_length`. Windows may begin within a document and span several.
    """
    return summarise_stretches(score_stretches(model, tokens, device=device, progress=progress))


def score_stretches(
    model: Scored,
    tokens: SameTokens,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda scored: None,
) -> dict[int, Tensor]:
    """The loss of every target, by context length: ``[stretches, longest]`` for each length.

    Arguments are those of :func:`loss_by_length`. Index by index the targets are the same at all lengths
    and for all models, so that differences can be taken stretch by stretch.
    """
    scored, stretches = 0, {}
    for length in tokens.lengths:
        losses = []
        for inputs, targets in tokens.batches(length, batch_size=rows_at_once(length)):
            losses.append(token_losses(model, inputs, targets, device).flatten())
            scored += targets.numel()
            progress(scored)
        stretches[length] = torch.cat(losses).view(-1, max(tokens.lengths))
    return stretches


def summarise_stretches(
    stretches: Mapping[int, Tensor],
) -> tuple[list[LengthLoss], list[PositionLoss]]:
    """Loss by length, and by position at the longest length, from the losses of every target."""
    by_length = [
        LengthLoss(length, *_mean_and_error(losses.mean(1)), losses.numel())
        for length, losses in stretches.items()
    ]
    return by_length, _in_bins(stretches[max(stretches)])


def loss_by_position(
    model: Scored,
    source: TokenSource,
    length: int,
    *,
    at_most: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda scored: None,
) -> list[PositionLoss]:
    """The loss of a model in bins of position, over the documents of more than `length` tokens.

    Each is read from its start, so that the context of a token is its own document. Means and standard
    errors are over documents; a single document has no error. `at_most` bounds their number, and
    `progress` is called with the number of documents scored so far.
    """
    losses: list[Tensor] = []
    count = len(document_spans(source, at_least=length + 1))
    count = count if at_most is None else min(at_most, count)
    for inputs, targets in document_batches(source, length, batch_size=rows_at_once(length)):
        room = count - len(losses)
        losses.extend(token_losses(model, inputs[:room], targets[:room], device))
        progress(len(losses))
        if len(losses) == count:
            break
    return _in_bins(torch.stack(losses))


def _in_bins(losses: Tensor) -> list[PositionLoss]:
    """Losses ``[documents, length]`` in bins of position."""
    count, length = losses.shape
    return [
        # The target at index i has i + 1 tokens before it.
        PositionLoss(start, stop, *_mean_and_error(losses[:, start - 1 : stop - 1].mean(1)), count)
        for start, stop in pairwise(position_bins(length))
    ]


def _mean_and_error(values: Tensor) -> tuple[float, float | None]:
    estimate = Estimate(values)
    return estimate.mean, estimate.standard_error if len(values) > 1 else None
