"""Tasks: numbered examples of any length, as training batches and validation sets."""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Protocol

from torch import Tensor

from .windows import rows_of_rank

# The target of a token that is not scored, as in the model's loss.
NOT_SCORED = -100


class Task(Protocol):
    """A task as sequences in which some tokens are scored."""

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of examples, integer ``[len(numbers), length - 1]``."""
        ...


class TaskBatches:
    """Batches by step; every example is in exactly one.

    Sequences may grow from `first_length` to `length` at step `growth_steps`: short ones teach the task
    sooner.

    >>> from scale_invariant_attention.data.recall import RecallTask
    >>> inputs, targets = TaskBatches(RecallTask(), length=128, batch_size=4)[7]
    >>> inputs.shape
    torch.Size([4, 127])
    """

    def __init__(
        self,
        task: Task,
        *,
        length: int,
        batch_size: int,
        first_length: int | None = None,
        growth_steps: int = 0,
    ) -> None:
        self.task = task
        self.length = length
        self.first_length = length if first_length is None else first_length
        self.growth_steps = growth_steps
        self.batch_size = batch_size
        self._rows = range(batch_size)

    def rank(self, rank: int, *, of: int) -> "TaskBatches":
        """The rows of every batch that belong to one of several processes."""
        part = copy(self)
        part._rows = rows_of_rank(self._rows, rank, of)
        return part

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step."""
        first = step * self.batch_size
        return self.task.batch(self._length(step), [first + row for row in self._rows])

    def _length(self, step: int) -> int:
        if step >= self.growth_steps:
            return self.length
        return self.first_length + (self.length - self.first_length) * step // self.growth_steps


class TaskExamples:
    """The first examples of each of several lengths, for validation."""

    def __init__(self, task: Task, lengths: Sequence[int], examples: int) -> None:
        self.task = task
        self.lengths = tuple(lengths)
        self.examples = examples

    def batches(self, length: int, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, the last batch with the remainder."""
        for first in range(0, self.examples, batch_size):
            numbers = range(first, min(first + batch_size, self.examples))
            yield self.task.batch(length, numbers)
