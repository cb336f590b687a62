"""Loss per token of a batch, without gradients and in bounded memory."""

from typing import Protocol

import torch
from torch import Tensor

# Tokens per call of the model, unless a window is longer.
TOKENS_AT_ONCE = 16_384


class Scored(Protocol):
    """A model that returns the loss of every token, as a GPT does."""

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        """Losses ``[B, L]`` of targets ``[B, L]``."""
        ...


@torch.no_grad()
def token_losses(
    model: Scored, tokens: Tensor, targets: Tensor, device: torch.device | str
) -> Tensor:
    """Losses ``[B, L]``, float64 on the CPU, in nats."""
    losses = model(tokens.to(device), targets.to(device), reduction="none")
    return losses.double().cpu()


def rows_at_once(length: int) -> int:
    """Number of windows of a length to score in one call.

    >>> rows_at_once(256), rows_at_once(65_536)
    (64, 1)
    """
    return max(1, TOKENS_AT_ONCE // length)
