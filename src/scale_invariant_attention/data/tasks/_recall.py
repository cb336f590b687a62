"""Recall from noise: values of keys, values and keys of several tokens, and chains of variables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...arguments import integer, real_number
from ._task import Integers, Reals, SequenceTask, integers, next_tokens


@dataclass(frozen=True, kw_only=True)
class RecallTask(SequenceTask):
    """Associative recall, retrieval without language: key-value pairs in noise, and queries for values.

    A sequence is noise with pairs at random positions, then a mark, then queries: each a key, followed
    by its value. Token ids are keys, then values, then noise, then the mark. A key occurs once in a
    sequence, and once more if it is queried. Only the values of queries are scored.

    Args:
        keys: number of keys.
        values: number of values.
        noise: number of noise tokens.
        pairs: per sequence.
        queries: per sequence, each for a different pair.

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

    @property
    def chance(self) -> float:
        """One in as many as there are values."""
        return 1 / self.values

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        tokens = np.stack([self._sequence(length, number) for number in numbers])
        scored = np.zeros(tokens.shape, bool)
        scored[:, 1 - 2 * self.queries :: 2] = True
        return next_tokens(tokens, scored)

    def _sequence(self, length: int, number: int) -> Integers:
        # One by one and with draws of their own: recorded trainings have read these very sequences.
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


@dataclass(frozen=True, kw_only=True)
class MultiTokenRecallTask(SequenceTask):
    """Associative recall with many queries, and keys and values of several tokens each.

    A sequence is a start token, a body of blanks with pairs at random positions, a mark, and queries,
    each a key followed by its value. The number of pairs grows with the length: they fill the share
    `density` of the body. Token ids are the letters of keys, then those of values, then blank, start and
    mark. Keys of a sequence differ, values need not. Only the values of queries are scored.

    Args:
        key_letters: number of different letters of keys.
        value_letters: number of different letters of values.
        key_length: letters per key.
        value_length: letters per value.
        density: share of the body that pairs fill.
        queries: per sequence, each for a different pair.

    >>> task = MultiTokenRecallTask(key_letters=4, value_letters=4, queries=1)
    >>> inputs, targets = task.batch(14, [0])
    >>> inputs.tolist(), targets[0, -3:].tolist()
    ([[9, 8, 1, 3, 4, 7, 8, 8, 8, 10, 1, 3, 4]], [-100, 4, 7])
    """

    key_letters: int = 32
    value_letters: int = 32
    key_length: int = 2
    value_length: int = 2
    density: float = 0.8
    queries: int = 4

    def __post_init__(self) -> None:
        for name in ("key_letters", "value_letters", "key_length", "value_length", "queries"):
            integer(name, getattr(self, name), at_least=1)
        if real_number("density", self.density, at_least=0) > 1:
            raise ValueError(f"density must be at most 1, got {self.density}")
        if self.queries > self.keys:
            raise ValueError(f"queries must be at most the {self.keys} keys, got {self.queries}")

    @property
    def keys(self) -> int:
        """Number of different keys."""
        return int(self.key_letters**self.key_length)

    @property
    def vocab_size(self) -> int:
        """Letters of keys and of values, blank, start and mark."""
        return self.key_letters + self.value_letters + 3

    @property
    def shortest(self) -> int:
        """The length with as many pairs as queries, without blanks."""
        return 2 + 2 * self.queries * self._width

    @property
    def chance(self) -> float:
        """One in as many as there are letters of values."""
        return 1 / self.value_letters

    def pairs(self, length: int) -> int:
        """Number of pairs in a sequence.

        >>> MultiTokenRecallTask().pairs(64), MultiTokenRecallTask().pairs(4096)
        (9, 815)
        """
        body = length - 2 - self.queries * self._width
        return max(self.queries, int(self.density * body / self._width))

    def checked_length(self, length: int) -> int:
        """See :class:`SequenceTask`; nor can it have more pairs than there are keys."""
        pairs = self.pairs(super().checked_length(length))
        if pairs > self.keys:
            raise ValueError(
                f"length must be such that the pairs are no more than the {self.keys} keys, got "
                f"{length} with {pairs} pairs; choose more key_letters, or a lower density"
            )
        return length

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        pairs, asked = self.pairs(length), self.queries * self._width
        slots = length - 2 - asked - pairs * (self._width - 1)
        parts = (self.keys, pairs * self.value_length, slots, pairs)
        uniform = self.uniform(length, numbers, sum(parts))
        keys, values, positions, order = np.split(uniform, np.cumsum(parts)[:-1], axis=1)
        blank = self.key_letters + self.value_letters

        chosen = np.argsort(keys, axis=1)[:, :pairs, np.newaxis]
        powers = self.key_letters ** np.arange(self.key_length)
        value = integers(values, self.value_letters).reshape(-1, pairs, self.value_length)
        pair = np.concatenate([chosen // powers % self.key_letters, self.key_letters + value], 2)

        tokens = np.full((len(numbers), length), blank)
        tokens[:, 0], tokens[:, -asked - 1] = blank + 1, blank + 2
        at = 1 + scattered(positions, pairs, self._width)[..., np.newaxis] + np.arange(self._width)
        np.put_along_axis(tokens, at.reshape(len(numbers), -1), pair.reshape(len(numbers), -1), 1)
        queried = np.argsort(order, axis=1)[:, : self.queries, np.newaxis]
        queries = np.take_along_axis(pair, queried, axis=1)
        tokens[:, -asked:] = queries.reshape(len(numbers), asked)
        scored = np.zeros(tokens.shape, bool)
        scored[:, -asked:] = np.tile(np.arange(self._width) >= self.key_length, self.queries)
        return next_tokens(tokens, scored)

    @property
    def _width(self) -> int:
        return self.key_length + self.value_length


@dataclass(frozen=True, kw_only=True)
class VariableTrackingTask(SequenceTask):
    """Chains of assignments in noise, and questions: which variables have this value?

    A chain assigns a value to a variable, that variable to a second one, and so on; its statements are
    in this order, and those of different chains mixed, at random positions. Each is three tokens: the
    variable, the assignment, and what is assigned. After them, for each chain in random order, follow a
    mark, the value, and the variables in the order of assignment. Only these variables are scored. Token
    ids are variables, then values, then noise, then start, assignment and mark.

    Args:
        variables: number of different variables.
        values: number of different values.
        noise: number of noise tokens.
        chains: per sequence, each with a value and variables of its own.
        hops: assignments of a variable to another, per chain.

    >>> task = VariableTrackingTask(variables=4, values=2, noise=1, chains=1, hops=1)
    >>> inputs, targets = task.batch(12, [0])
    >>> inputs.tolist(), targets[0, -3:].tolist()
    ([[7, 3, 8, 4, 6, 2, 8, 3, 9, 4, 3]], [-100, 3, 2])
    """

    variables: int = 16
    values: int = 8
    noise: int = 8
    chains: int = 2
    hops: int = 3

    def __post_init__(self) -> None:
        for name in ("variables", "values", "noise", "chains"):
            integer(name, getattr(self, name), at_least=1)
        integer("hops", self.hops, at_least=0)
        if self.chains > self.values:
            raise ValueError(f"chains must be at most the {self.values} values, got {self.chains}")
        if self.statements > self.variables:
            raise ValueError(
                f"variables must be at least the {self.statements} of {self.chains} chains with "
                f"{self.hops} hops, got {self.variables}"
            )

    @property
    def statements(self) -> int:
        """Number of statements, each of which assigns to another variable."""
        return self.chains * (self.hops + 1)

    @property
    def vocab_size(self) -> int:
        """Variables, values, noise, start, assignment and mark."""
        return self.variables + self.values + self.noise + 3

    @property
    def shortest(self) -> int:
        """The length without any noise."""
        return 1 + 3 * self.statements + self.statements + 2 * self.chains

    @property
    def chance(self) -> float:
        """One in as many as there are variables."""
        return 1 / self.variables

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        count, chains, links = len(numbers), self.chains, self.hops + 1
        noise = length - self.shortest
        slots = noise + self.statements
        body = noise + 3 * self.statements
        parts = (self.variables, self.values, self.statements, slots, chains, body)
        uniform = self.uniform(length, numbers, sum(parts))
        names, values, mixing, positions, order, fill = np.split(uniform, np.cumsum(parts)[:-1], 1)
        start = self.variables + self.values + self.noise

        # Each chain: what is assigned first, then its variables.
        variables = np.argsort(names, axis=1)[:, : self.statements].reshape(count, chains, links)
        value = self.variables + np.argsort(values, axis=1)[:, :chains, np.newaxis]
        chain = np.concatenate([value, variables], axis=2)
        assigned, to = chain[:, :, :-1], chain[:, :, 1:]
        statement = np.stack([to, np.full_like(to, start + 1), assigned], axis=3)

        # Mix the chains, each in its order: the statement in slot i is the next of its chain.
        mixed = np.argsort(mixing, axis=1) % chains
        slot = np.argsort(mixed, axis=1, kind="stable").reshape(count, chains, links)
        first = scattered(positions, self.statements, 3)
        at = 1 + np.take_along_axis(first, slot.reshape(count, -1), axis=1)[..., np.newaxis]

        tokens = np.full((count, length), start)
        tokens[:, 1 : 1 + body] = self.variables + self.values + integers(fill, self.noise)
        at = (at + np.arange(3)).reshape(count, -1)
        np.put_along_axis(tokens, at, statement.reshape(count, -1), axis=1)
        questions = np.take_along_axis(chain, np.argsort(order, axis=1)[..., np.newaxis], axis=1)
        marks = np.full((count, chains, 1), start + 2)
        tokens[:, 1 + body :] = np.concatenate([marks, questions], axis=2).reshape(count, -1)
        scored = np.zeros(tokens.shape, bool)
        scored[:, 1 + body :] = np.tile(np.arange(links + 2) >= 2, chains)
        return next_tokens(tokens, scored)


def scattered(uniform: Reals, items: int, width: int) -> Integers:
    """First positions of items of `width` tokens among single tokens, ascending: ``[batch, items]``.

    `uniform` has a random number for each item and for each single token.

    >>> scattered(np.array([[0.9, 0.1, 0.8, 0.2]]), items=2, width=3)
    array([[1, 5]])
    """
    slots = np.sort(np.argsort(uniform, axis=1)[:, :items], axis=1)
    return slots + np.arange(items) * (width - 1)
