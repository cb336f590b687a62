"""Tasks: numbered examples of any length, as training batches and validation sets."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import integer
from .windows import rows_of_rank

# The target of a token that is not scored, as in the model's loss.
NOT_SCORED = -100


class Task(Protocol):
    """A task as sequences in which some tokens are scored."""

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of examples, integer ``[len(numbers), length - 1]``."""


@dataclass(frozen=True)
class RecallTask:
    """Associative recall, retrieval without language: key-value pairs in noise, and queries for values.

    A sequence is noise with pairs at random positions, then a mark, then queries: each a key, followed
    by its value. All of it together has exactly the requested length, and is determined by seed, length
    and number. Token ids are keys, then values, then noise, then the mark. A key occurs once in a
    sequence, and once more if it is queried. Only the values of queries are scored.

    Args:
        keys: number of keys.
        values: number of values.
        noise: number of noise tokens.
        pairs: per sequence.
        queries: per sequence, each for a different pair.
        seed: selects other sequences.

    >>> task = RecallTask(keys=8, values=8, noise=4, pairs=2, queries=1)
    >>> inputs, targets = task.batch(12, [0])
    >>> inputs.shape, int((targets >= 0).sum()), task.vocab_size
    (torch.Size([1, 11]), 1, 21)
    """

    keys: int = 64
    values: int = 64
    noise: int = 32
    pairs: int = 16
    queries: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("keys", "values", "noise", "pairs", "queries"):
            integer(name, getattr(self, name), at_least=1)
        for name, most in (("pairs", "keys"), ("queries", "pairs")):
            given, limit = getattr(self, name), getattr(self, most)
            if given > limit:
                raise ValueError(f"{name} must be at most the {limit} {most}, got {given}")

    @property
    def vocab_size(self) -> int:
        """Keys, values, noise, and the mark."""
        return self.keys + self.values + self.noise + 1

    @property
    def shortest(self) -> int:
        """The length without any noise."""
        return 2 * self.pairs + 1 + 2 * self.queries

    def example(self, length: int, number: int) -> NDArray[np.int64]:
        """Sequence `number`, of `length` tokens."""
        if length < self.shortest:
            raise ValueError(
                f"length must be at least {self.shortest} for {self.pairs} pairs and {self.queries} "
                f"queries, got {length}"
            )
        rng = np.random.default_rng([self.seed, length, number])
        keys = rng.permutation(self.keys)[: self.pairs]
        values = self.keys + rng.integers(0, self.values, self.pairs)
        noise = length - self.shortest
        body = self.keys + self.values + rng.integers(0, self.noise, noise + 2 * self.pairs)
        # Pairs and noise tokens are items in one row: choose which items are pairs.
        starts = np.sort(rng.permutation(noise + self.pairs)[: self.pairs]) + np.arange(self.pairs)
        body[starts], body[starts + 1] = keys, values
        asked = rng.permutation(self.pairs)[: self.queries]
        queries = np.stack([keys[asked], values[asked]], axis=1).reshape(-1)
        return np.concatenate([body, [self.vocab_size - 1], queries])

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[len(numbers), length - 1]``; only the values of queries are scored."""
        tokens = torch.tensor(np.stack([self.example(length, number) for number in numbers]))
        targets = tokens[:, 1:].clone()
        targets[:, : -2 * self.queries] = NOT_SCORED
        targets[:, -2 * self.queries :: 2] = NOT_SCORED
        return tokens[:, :-1], targets


class TaskBatches:
    """Batches by step; every example is in exactly one.

    Sequences may grow from `first_length` to `length` at step `growth_steps`: short ones teach the task
    sooner.

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
    """The first examples of each of several lengths, for validation."""

    task: Task
    lengths: tuple[int, ...]
    examples: int

    def batches(self, length: int, *, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets, the last batch with the remainder."""
        for first in range(0, self.examples, batch_size):
            numbers = range(first, min(first + batch_size, self.examples))
            yield self.task.batch(length, numbers)
