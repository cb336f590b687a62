"""Associative recall, retrieval without language: key-value pairs in noise, and queries for values.

A sequence is noise with pairs at random positions, then a mark, then queries: each a key, followed by
its value. All of it together has exactly the requested length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .tasks import NOT_SCORED


@dataclass(frozen=True)
class RecallTask:
    """Sequences of any length, determined by seed, length and number.

    Token ids are keys, then values, then noise, then the mark. A key occurs once in a sequence, and once
    more if it is queried. Only the values of queries are scored.

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
            if index(getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pairs > self.keys:
            raise ValueError(
                f"pairs must be at most the {self.keys} keys, one pair per key, got {self.pairs}"
            )
        if self.queries > self.pairs:
            raise ValueError(
                f"queries must be at most the {self.pairs} pairs, one query per pair, got "
                f"{self.queries}"
            )

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
