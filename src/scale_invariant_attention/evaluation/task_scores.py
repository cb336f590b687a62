"""Scores of a model in a task: answers that are right, and the loss above the best prediction's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.tasks import NOT_SCORED, ProcessTask, Task
from ..theory import Estimate
from .losses import rows_at_once
from .shares import Share


@dataclass(frozen=True)
class TaskScore:
    """Scores at one length; `whole` are the examples in which every answer is right.

    `loss` is the mean over answers, in nats. `excess` is the loss of each example, as the mean over its
    answers, above that of the best possible prediction; None if that is not known.
    """

    answers: Share
    whole: Share
    loss: float
    excess: Estimate | None


@torch.no_grad()
def score_task(
    model: Callable[[Tensor], Tensor],
    task: Task,
    length: int,
    examples: int,
    *,
    device: torch.device | str = "cpu",
) -> TaskScore:
    """Score the examples 0 to `examples - 1` of a length; the answer of a model is the likeliest token.

    Earlier answers of a sequence are the right ones, whatever the model answered. Where answers are part
    of the sequence, a model that generates them all gets the same examples entirely right.

    >>> from scale_invariant_attention.data.tasks import CopyTask
    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> task = CopyTask(symbols=4)
    >>> config = GPTConfig(vocab_size=task.vocab_size, layers=1, width=16, heads=2)
    >>> score = score_task(GPT(config), task, length=32, examples=3)
    >>> score.answers.count, score.whole.count
    (45, 3)
    """
    hits, counts, losses, optima = [], [], [], []
    at_once = rows_at_once(length)
    for first in range(0, examples, at_once):
        numbers = range(first, min(first + at_once, examples))
        tokens, targets = task.batch(length, numbers)
        scored = targets != NOT_SCORED
        logits = model(tokens.to(device)).cpu()
        loss = torch.zeros(targets.shape, dtype=torch.float64)
        loss[scored] = F.cross_entropy(logits[scored].double(), targets[scored], reduction="none")
        hits.append(((logits.argmax(-1) == targets) & scored).sum(1))
        counts.append(scored.sum(1))
        losses.append(loss.sum(1))
        if isinstance(task, ProcessTask):
            optima.append(torch.from_numpy(task.optimal_losses(length, numbers)))
    right, count, loss = map(torch.cat, (hits, counts, losses))
    return TaskScore(
        answers=Share(int(right.sum()), int(count.sum())),
        whole=Share(int((right == count).sum()), examples),
        loss=float(loss.sum() / count.sum()),
        excess=Estimate((loss - torch.cat(optima)) / count) if optima else None,
    )
