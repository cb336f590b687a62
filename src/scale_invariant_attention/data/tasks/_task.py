"""The form of a task, and its examples as training batches and validation sets."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..windows import rows_of_rank

# The target of a token that is not scored, as in the model's loss.
NOT_SCORED = -100

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


class Task(Protocol):
    """A task as sequences in which some tokens are scored."""

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of examples, integer ``[len(numbers), length - 1]``."""


@dataclass(frozen=True, kw_only=True)
class SequenceTask(ABC):
    """A task whose examples are generated from random numbers, a whole batch at once.

    An example is determined by seed, length and number, whichever others are in its batch. A model reads
    ``length - 1`` tokens; the last of its answers is the token number `length`.

    Args:
        seed: selects other examples.
    """

    seed: int = 0

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids, those of answers included."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The length of the shortest example."""

    @property
    @abstractmethod
    def chance(self) -> float | None:
        """The share of scored tokens that a simple guess gets right, without reading the sequence.

        None if what is measured is the loss.
        """

    @abstractmethod
    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """Inputs and targets of examples that are at least as long as the shortest."""

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of examples, integer ``[len(numbers), length - 1]``."""
        inputs, targets = self.examples(self.checked_length(length), numbers)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def checked_length(self, length: int) -> int:
        """The length, if an example can be as short."""
        if length < self.shortest:
            raise ValueError(f"length must be at least {self.shortest} for {self}, got {length}")
        return length

    def uniform(self, length: int, numbers: Sequence[int], count: int) -> Reals:
        """Random numbers from 0 to below 1, ``[len(numbers), count]``, of each example its own."""
        seeds = ([self.seed, length, number] for number in numbers)
        return np.stack([np.random.default_rng(seed).random(count) for seed in seeds])


def integers(uniform: Reals, below: int) -> Integers:
    """Integers from 0 to below a number, from random numbers that are uniform from 0 to below 1."""
    return (uniform * below).astype(np.int64)


def next_tokens(tokens: Integers, scored: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Inputs and targets of sequences ``[batch, length]`` in which some tokens are to be predicted."""
    return tokens[:, :-1], np.where(scored, tokens, NOT_SCORED)[:, 1:]


class TaskBatches:
    """Batches by step; every example is in exactly one.

    Sequences may grow from `first_length` to `length` at step `growth_steps`: short ones teach the task
    sooner.

    >>> from scale_invariant_attention.data.tasks import RecallTask
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
        length = self.length
        if step < self.growth_steps:
            grown = (length - self.first_length) * step // self.growth_steps
            length = self.first_length + grown
        first = step * self.batch_size
        return self.task.batch(length, [first + row for row in self._rows])


@dataclass(frozen=True)
class TaskExamples:
    """The first examples of each of several lengths, for validation.

    With `same_tokens`, `examples` is the number at the greatest length, and shorter ones have as many
    tokens.
    """

    task: Task
    lengths: tuple[int, ...]
    examples: int
    same_tokens: bool = False

    def batches(self, length: int, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, the last batch with the remainder."""
        examples = self.examples * (max(self.lengths) // length if self.same_tokens else 1)
        for first in range(0, examples, batch_size):
            numbers = range(first, min(first + batch_size, examples))
            yield self.task.batch(length, numbers)
