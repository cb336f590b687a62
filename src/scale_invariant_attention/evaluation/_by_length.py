"""Loss by context length: the same tokens, each scored once at every length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..data import SameTokens
from ..theory import Estimate
from .scoring import Scored, rows_at_once, token_losses


@dataclass(frozen=True)
class LengthLoss:
    """The mean loss, in nats, of `tokens` targets with at most `length - 1` tokens before them."""

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
    stretch = max(tokens.lengths)
    scored = 0
    rows = []
    for length in tokens.lengths:
        losses = []
        for inputs, targets in tokens.batches(length, batch_size=rows_at_once(length)):
            losses.append(token_losses(model, inputs, targets, device).flatten())
            scored += targets.numel()
            progress(scored)
        stretches = Estimate(torch.cat(losses).view(-1, stretch).mean(1))
        error = stretches.standard_error if len(stretches.values) > 1 else None
        rows.append(LengthLoss(length, stretches.mean, error, tokens.count))
    return rows
