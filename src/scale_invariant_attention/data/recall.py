"""Associative recall: pairs of a key and a value in noise, and keys whose values are asked for.

Retrieval without language. A sequence is noise with pairs at random places, then a mark, then queries:
each a key, behind which its value has to come. All of it together has exactly the length asked for.
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
    """Sequences of any length, the same for the same seed, length and number, whatever the model.

    Tokens are keys, then values, then noise, then the mark; no key is in a sequence twice but for its
    query. Only the values behind queries are scored.

    Args:
        keys: how many there are.
        values: the same.
        noise: the same.
        pairs: in a sequence.
        queries: in a sequence, each of another pair.
        seed: for other sequences.

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
                f"pairs must be at most the {self.keys} keys, each of another one, got {self.pairs}"
            )
        if self.queries > self.pairs:
            raise ValueError(
                f"queries must be at most the {self.pairs} pairs, each of another one, got "
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
        """The sequence of a number: `length` tokens."""
        if length < self.shortest:
            raise ValueError(
                f"length must be at least {self.shortest} for {self.pairs} pairs and {self.queries} "
                f"queries, got {length}"
            )
        chance = np.random.default_rng([self.seed, length, number])
        keys = chance.permutation(self.keys)[: self.pairs]
        values = self.keys + chance.integers(0, self.values, self.pairs)
        noise = length - self.shortest
        body = self.keys + self.values + chance.integers(0, self.noise, noise + 2 * self.pairs)
        # A pair is one thing among the noise: choose which of the things are pairs.
        places = np.sort(chance.permutation(noise + self.pairs)[: self.pairs]) + np.arange(
            self.pairs
        )
        body[places], body[places + 1] = keys, values
        asked = chance.permutation(self.pairs)[: self.queries]
        queries = np.stack([keys[asked], values[asked]], axis=1).reshape(-1)
        return np.concatenate([body, [self.vocab_size - 1], queries])

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[len(numbers), length - 1]``; only values asked for are scored."""
        tokens = torch.tensor(np.stack([self.example(length, number) for number in numbers]))
        targets = tokens[:, 1:].clone()
        targets[:, : -2 * self.queries] = NOT_SCORED
        targets[:, -2 * self.queries :: 2] = NOT_SCORED
        return tokens[:, :-1], targets
