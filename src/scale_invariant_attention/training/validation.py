"""Validation during training: the loss at several lengths, the work divided among the ranks."""

from itertools import islice

from ..data.tasks import NOT_SCORED
from ..evaluation.scoring import Scored, rows_at_once, token_losses
from .ranks import Ranks
from .training_data import ValidationSet


def validation_losses(model: Scored, tokens: ValidationSet, ranks: Ranks) -> dict[int, float]:
    """The mean loss by length, in nats, the same on every rank; all must call this.

    All call the model equally often: one that has but a part of the weights needs the others for each
    call. A rank that has no batch left takes another's, and does not count it.

    >>> import torch
    >>> from scale_invariant_attention.data import SameTokens, standard_library
    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> tokens = SameTokens(standard_library("validation"), (32, 64), at_most=128)
    >>> model, alone = GPT(GPTConfig.preset("mini")), Ranks(0, 1, torch.device("cpu"))
    >>> {length: round(loss, 3) for length, loss in validation_losses(model, tokens, alone).items()}
    {32: 5.545, 64: 5.545}
    """
    losses = {}
    for length in tokens.lengths:
        batches = tokens.batches(length, batch_size=rows_at_once(length))
        mine, scored = 0.0, 0
        while turn := list(islice(batches, ranks.size)):
            inputs, targets = turn[min(ranks.rank, len(turn) - 1)]
            loss = float(token_losses(model, inputs, targets, ranks.device).sum())
            if ranks.rank < len(turn):
                mine += loss
                scored += int((targets != NOT_SCORED).sum())
        total, count = ranks.sum(mine, scored)
        losses[length] = total / count
    return losses
