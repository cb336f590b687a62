"""Random processes, whose law is known: the loss of the best prediction is a lower bound."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arguments import integer, real_number
from ._task import NOT_SCORED, Integers, Reals, SequenceTask, integers

# A, C, G and T.
LETTERS = 4


@dataclass(frozen=True, kw_only=True)
class ProcessTask(SequenceTask):
    """A task that is measured by the loss above the optimum, that of the best possible prediction."""

    @property
    def chance(self) -> None:
        """See :class:`SequenceTask`."""
        return None

    @abstractmethod
    def process(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers, Reals]:
        """Inputs, targets, and the losses of the best prediction in nats, 0 where none is scored."""

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        inputs, targets, _ = self.process(length, numbers)
        return inputs, targets

    def optimal_losses(self, length: int, numbers: Sequence[int]) -> Reals:
        """Sum of the losses of each example with the best prediction, in nats: ``[len(numbers)]``."""
        losses: Reals = self.process(self.checked_length(length), numbers)[2].sum(axis=1)
        return losses


@dataclass(frozen=True, kw_only=True)
class FractalNoiseTask(ProcessTask):
    """A binary time series whose correlations have no scale: they fall as a power of the distance.

    The correlation of bits at distance r is that of fractionally integrated noise, proportional to
    ``r ** (2 * memory - 1)`` for large r. The mean of each bit, given all earlier ones, is their best
    linear prediction, so that no other prediction is better. Token ids are the bits, then the start
    token before them.

    Args:
        memory: order of the fractional integration, from 0, no memory, to below 0.5.

    >>> inputs, targets = FractalNoiseTask().batch(8, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[2, 0, 0, 0, 1, 1, 1]], [[0, 0, 0, 1, 1, 1, 1]])
    """

    memory: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= real_number("memory", self.memory) < 0.5:
            raise ValueError(f"memory must be from 0 to below 0.5, got {self.memory}")

    @property
    def vocab_size(self) -> int:
        """Two bits and start."""
        return 3

    @property
    def shortest(self) -> int:
        """The length of a start token and a bit."""
        return 2

    def process(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers, Reals]:
        """See :class:`ProcessTask`."""
        count = length - 1
        uniform = self.uniform(length, numbers, count)
        signs, means = np.empty_like(uniform), np.zeros_like(uniform)
        # Levinson's recursion: the weights of the last bit, the one before it, and so on.
        weights = np.empty(0)
        for now in range(count):
            if now:
                last = self.memory / (now - self.memory)
                weights = np.append(weights - last * weights[::-1], last)
            means[:, now] = signs[:, :now] @ weights[::-1]
            signs[:, now] = np.where(2 * uniform[:, now] - 1 < means[:, now], 1, -1)
        bits = (signs > 0).astype(np.int64)
        inputs = np.concatenate([np.full((len(numbers), 1), 2), bits[:, :-1]], axis=1)
        return inputs, bits, -np.log((1 + signs * means) / 2)


@dataclass(frozen=True, kw_only=True)
class MotifTask(ProcessTask):
    """Something like DNA: Markov letters, and between them motifs that return, from near and from far.

    A sequence alternates random stretches of letters and genes: a name, and a motif that belongs to the
    name. Where a name first occurs, its motif is random; later, each letter is that of the first
    occurrence, or with the probability `mutation` another. Names occur with frequencies of 1, 1/2, 1/3,
    ..., in an order drawn for each sequence, so that motifs return after distances of all scales. The
    letters of stretches depend on the two letters before. Letters are scored, names are not. Token ids
    are four letters, then names, then the start token.

    Args:
        names: number of different names.
        motif: letters per motif.
        longest: the greatest length of a stretch; lengths are uniformly random.
        mutation: probability that a letter of a motif is not that of the first occurrence.

    >>> inputs, targets = MotifTask(names=2, motif=2, longest=2).batch(12, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[6, 0, 4, 0, 0, 0, 3, 5, 1, 3, 2]], [[0, -100, 0, 0, 0, 3, -100, 1, 3, 2, -100]])
    """

    names: int = 32
    motif: int = 6
    longest: int = 10
    mutation: float = 0.05

    def __post_init__(self) -> None:
        for name in ("names", "motif", "longest"):
            integer(name, getattr(self, name), at_least=1)
        if not 0 <= real_number("mutation", self.mutation) < 1:
            raise ValueError(f"mutation must be from 0 to below 1, got {self.mutation}")

    @property
    def vocab_size(self) -> int:
        """Letters, names and start."""
        return LETTERS + self.names + 1

    @property
    def shortest(self) -> int:
        """The length of a start token and a letter."""
        return 2

    def process(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers, Reals]:
        """See :class:`ProcessTask`."""
        rows, genes = len(numbers), length // (self.motif + 2) + 1
        parts = (genes, genes, self.names, self.names * self.motif, length)
        uniform = self.uniform(length, numbers, sum(parts))
        gaps, ranks, order, motifs, letters = np.split(uniform, np.cumsum(parts)[:-1], axis=1)

        # Of each gene: the rank of its name, the name, and whether it is the first with that name.
        frequencies = np.cumsum(1 / np.arange(1, self.names + 1))
        rank = np.searchsorted(frequencies, ranks * frequencies[-1], side="right")
        name = LETTERS + np.take_along_axis(np.argsort(order, axis=1), rank, axis=1)
        is_first = first_of_each(rank)
        motif = integers(motifs, LETTERS).reshape(rows, self.names, self.motif)

        # Of each position: the gene that began last, and how many tokens ago.
        begins = np.cumsum(2 + integers(gaps, self.longest) + self.motif, axis=1) - self.motif
        is_name = np.zeros((rows, length), bool)
        is_name[np.nonzero(begins < length)[0], begins[begins < length]] = True
        gene = np.maximum(np.cumsum(is_name, axis=1) - 1, 0)
        since = np.arange(length) - np.take_along_axis(begins, gene, axis=1)
        in_motif = (since >= 1) & (since <= self.motif)
        is_copy = in_motif & ~np.take_along_axis(is_first, gene, axis=1)

        # Letters of motifs, those of copies perhaps mutated, and what the best prediction gives them.
        at = np.take_along_axis(rank, gene, axis=1), np.clip(since - 1, 0, self.motif - 1)
        original = motif[np.arange(rows)[:, np.newaxis], *at]
        is_mutated = is_copy & (letters < self.mutation)
        other = original + 1 + integers(letters / (self.mutation or 1), LETTERS - 1)
        tokens = np.where(is_mutated, other % LETTERS, original)
        tokens = np.where(is_name, np.take_along_axis(name, gene, axis=1), tokens)
        tokens[:, 0] = self.vocab_size - 1
        likely = np.where(is_mutated, self.mutation / (LETTERS - 1), 1 - self.mutation)
        likely = np.where(is_copy, likely, 1 / LETTERS)

        # Letters of stretches, one after the other.
        law, before = transitions(), np.zeros(rows, np.int64)
        below = law.cumsum(axis=1)[:, :-1]
        for now in range(1, length):
            drawn = (letters[:, now, np.newaxis] >= below[before]).sum(axis=1)
            in_stretch = ~(is_name[:, now] | in_motif[:, now])
            tokens[:, now] = np.where(in_stretch, drawn, tokens[:, now])
            likely[:, now] = np.where(in_stretch, law[before, drawn], likely[:, now])
            following = (LETTERS * before + tokens[:, now]) % len(law)
            before = np.where(is_name[:, now], before, following)
        targets = np.where(is_name, NOT_SCORED, tokens)[:, 1:]
        losses = np.where(is_name, 0.0, -np.log(likely))[:, 1:]
        return tokens[:, :-1], targets, losses


def first_of_each(values: Integers) -> NDArray[np.bool_]:
    """Whether each value of a row is the first of its kind in the row.

    >>> first_of_each(np.array([[3, 1, 3, 0, 1]]))
    array([[ True,  True, False,  True, False]])
    """
    order = np.argsort(values, axis=1, kind="stable")
    changes = np.diff(np.take_along_axis(values, order, axis=1), axis=1, prepend=-1) != 0
    is_first = np.empty(values.shape, bool)
    np.put_along_axis(is_first, order, changes, axis=1)
    return is_first


def transitions() -> Reals:
    """Probability of each letter after every two letters, ``[16, 4]``: a fixed law, invented."""
    before, letter = np.ogrid[: LETTERS**2, :LETTERS]
    weights = np.exp(2 * np.cos(before * letter + before + 2 * letter))
    law: Reals = weights / weights.sum(axis=1, keepdims=True)
    return law
