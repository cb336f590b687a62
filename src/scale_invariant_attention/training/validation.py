"""Validation during training: the loss at several lengths, the work divided among the ranks."""

from itertools import islice

from ..data import SameTokens
from ..evaluation.scoring import Scored, rows_at_once, token_losses
from .ranks import Ranks


def validation_losses(model: Scored, tokens: SameTokens, ranks: Ranks) -> dict[int, float]:
    """The mean loss by length, in nats, the same on every rank; all must call this.

    >>> import torch
    >>> from scale_invariant_attention.data import standard_library
    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> tokens = SameTokens(standard_library("validation"), (32, 64), at_most=128)
    >>> model, alone = GPT(GPTConfig.preset("mini")), Ranks(0, 1, torch.device("cpu"))
    >>> {length: round(loss, 3) for length, loss in validation_losses(model, tokens, alone).items()}
    {32: 5.545, 64: 5.545}
    """
    losses = {}
    for length in tokens.lengths:
        batches = tokens.batches(length, batch_size=rows_at_once(length))
        mine = (
            float(token_losses(model, inputs, targets, ranks.device).sum())
            for inputs, targets in islice(batches, ranks.rank, None, ranks.size)
        )
        (total,) = ranks.sum(sum(mine))
        losses[length] = total / tokens.count
    return losses
