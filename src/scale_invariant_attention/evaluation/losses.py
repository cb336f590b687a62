"""Loss of a model, in nats: per token of a batch, by context length, and by position in a document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from ..arguments import real_number, shown
from ..data import SameTokens, TokenSource, document_batches, document_spans
from ..model import GPT
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
    return list(measure_losses(model, tokens, device=device, progress=progress).by_length)


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


@dataclass(frozen=True)
class Losses:
    """Loss by context length on the same tokens, and by position in windows of the longest length.

    Windows may begin within a document and span several. `by_stretch` is the loss of each stretch of
    the longest length, as the mean over all context lengths.
    """

    by_length: tuple[LengthLoss, ...]
    by_position: tuple[PositionLoss, ...]
    by_stretch: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the lengths, each of which counts the same."""
        return sum(row.loss for row in self.by_length) / len(self.by_length)

    def above(self, other: "Losses") -> Estimate:
        """Excess of the mean over that of another model on the same text, paired by stretch."""
        mine, others = (torch.tensor(it.by_stretch, dtype=torch.float64) for it in (self, other))
        return Estimate(mine - others)

    @classmethod
    def from_json(cls, value: Any) -> "Losses":
        """Losses as a record holds them; TypeError or ValueError names a field that is none of them."""
        return cls(
            tuple(LengthLoss(**row) for row in _rows("by_length", value)),
            tuple(PositionLoss(**row) for row in _rows("by_position", value)),
            tuple(real_number("by_stretch", loss) for loss in _listed("by_stretch", value)),
        )


def _listed(name: str, value: Any) -> Sequence[Any]:
    listed = value.get(name) if isinstance(value, dict) else None
    if not isinstance(listed, list | tuple):
        raise TypeError(f"{name} must be a list, got {shown(listed)}")
    return listed


def _rows(name: str, value: Any) -> Iterator[dict[str, Any]]:
    for index, row in enumerate(_listed(name, value)):
        if not isinstance(row, dict):
            raise TypeError(f"{name}[{index}] must be an object, got {shown(row)}")
        for key, number in row.items():
            # A single stretch has no standard error.
            if key != "standard_error" or number is not None:
                real_number(f"{name}[{index}].{key}", number)
        yield row


def measure_losses(
    model: Scored,
    tokens: SameTokens,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda scored: None,
) -> Losses:
    """The loss of a model by context length, by position and by stretch.

    Arguments are those of :func:`loss_by_length`.
    """
    _check_predicts_next(model)
    scored, longest = 0, max(tokens.lengths)
    by_length, by_position, means = [], torch.zeros(0, longest), []
    for length in tokens.lengths:
        losses = []
        for inputs, targets in tokens.batches(length, batch_size=rows_at_once(length)):
            losses.append(token_losses(model, inputs, targets, device).flatten())
            scored += targets.numel()
            progress(scored)
        stretches = torch.cat(losses).view(-1, longest)
        means.append(stretches.mean(1))
        by_length.append(LengthLoss(length, *_mean_and_error(means[-1]), tokens.count))
        by_position = stretches if length == longest else by_position
    by_stretch = torch.stack(means).mean(0)
    return Losses(tuple(by_length), tuple(_in_bins(by_position)), tuple(by_stretch.tolist()))


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
    _check_predicts_next(model)
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


def _check_predicts_next(model: Scored) -> None:
    if isinstance(model, GPT):
        model.config.check_is_causal("the loss of next tokens")


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
