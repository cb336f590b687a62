"""Loss by position: of the first, the hundredth, the ten-thousandth token of a document."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from ..data import TokenSource, document_batches, document_spans
from ..theory import Estimate
from .scoring import Scored, rows_at_once, token_losses


@dataclass(frozen=True)
class PositionLoss:
    """The mean loss, in nats, of the targets with `start` to `stop - 1` tokens before them."""

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
    losses: list[torch.Tensor] = []
    count = len(document_spans(source, at_least=length + 1))
    count = count if at_most is None else min(at_most, count)
    for inputs, targets in document_batches(source, length, batch_size=rows_at_once(length)):
        room = count - len(losses)
        losses.extend(token_losses(model, inputs[:room], targets[:room], device))
        progress(len(losses))
        if len(losses) == count:
            break
    by_document = torch.stack(losses)
    edges = position_bins(length)
    return [_bin(by_document, start, stop) for start, stop in pairwise(edges)]


def _bin(by_document: torch.Tensor, start: int, stop: int) -> PositionLoss:
    # The target at index i has i + 1 tokens before it.
    estimate = Estimate(by_document[:, start - 1 : stop - 1].mean(1))
    error = estimate.standard_error if len(estimate.values) > 1 else None
    return PositionLoss(start, stop, estimate.mean, error, len(by_document))
