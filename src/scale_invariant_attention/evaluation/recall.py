"""Associative recall: the share of values that a model knows for the keys it is asked for."""

import torch

from ..data.recall import RecallTask
from ..data.tasks import NOT_SCORED
from ..model import GPT
from .needle_scores import Share
from .scoring import rows_at_once


@torch.no_grad()
def recall_accuracy(
    model: GPT, task: RecallTask, length: int, examples: int, *, device: torch.device | str = "cpu"
) -> Share:
    """How often the likeliest token behind a key is its value, in the examples 0 to `examples - 1`.

    Earlier queries of a sequence are followed by their right values, whatever the model said.

    >>> from scale_invariant_attention.model import GPTConfig
    >>> task = RecallTask(keys=4, values=4, noise=2, pairs=2, queries=2)
    >>> config = GPTConfig(vocab_size=task.vocab_size, layers=1, width=16, heads=2)
    >>> recall_accuracy(GPT(config), task, length=32, examples=3).count
    6
    """
    hits = count = 0
    at_once = rows_at_once(length)
    for first in range(0, examples, at_once):
        tokens, targets = task.batch(length, range(first, min(first + at_once, examples)))
        scored = targets != NOT_SCORED
        likeliest = model(tokens.to(device)).argmax(-1).cpu()
        hits += int((likeliest == targets)[scored].sum())
        count += int(scored.sum())
    return Share(hits, count)
