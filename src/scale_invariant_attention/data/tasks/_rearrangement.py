"""Rearrangement of a sequence after a mark: copy, reverse and sort, whose answers are as long."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arguments import integer
from ._task import Integers, SequenceTask, integers, next_tokens


@dataclass(frozen=True, kw_only=True)
class RearrangementTask(SequenceTask):
    """Random symbols, a mark, and the same symbols in another order.

    A start token precedes them, or two where the length is odd. Token ids are the symbols, then start,
    then the mark.

    Args:
        symbols: number of different symbols.
    """

    symbols: int = 32

    def __post_init__(self) -> None:
        integer("symbols", self.symbols, at_least=2)

    @property
    def vocab_size(self) -> int:
        """Symbols, start and mark."""
        return self.symbols + 2

    @property
    def shortest(self) -> int:
        """The length with one symbol."""
        return 4

    @property
    def chance(self) -> float:
        """One in as many as there are symbols."""
        return 1 / self.symbols

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        count = (length - 2) // 2
        source = integers(self.uniform(length, numbers, count), self.symbols)
        answer = self._rearranged(source)
        tokens = np.full((len(numbers), length), self.symbols)
        tokens[:, -2 * count - 1 : -count - 1] = source
        tokens[:, -count - 1] = self.symbols + 1
        tokens[:, -count:] = answer
        scored = np.zeros(tokens.shape, bool)
        scored[:, -count:] = self._scored(answer)
        return next_tokens(tokens, scored)

    @abstractmethod
    def _rearranged(self, source: Integers) -> Integers:
        """The answers ``[batch, count]``."""

    def _scored(self, answer: Integers) -> NDArray[np.bool_]:
        """Which tokens of the answers are scored: mostly all."""
        return np.ones(answer.shape, bool)


@dataclass(frozen=True, kw_only=True)
class CopyTask(RearrangementTask):
    """Random symbols, and the same again.

    >>> inputs, targets = CopyTask(symbols=4).batch(10, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[4, 1, 0, 2, 1, 5, 1, 0, 2]], [[-100, -100, -100, -100, -100, 1, 0, 2, 1]])
    """

    def _rearranged(self, source: Integers) -> Integers:
        return source


@dataclass(frozen=True, kw_only=True)
class ReverseTask(RearrangementTask):
    """Random symbols, and the same from the last to the first.

    >>> inputs, targets = ReverseTask(symbols=4).batch(10, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[4, 1, 0, 2, 1, 5, 1, 2, 0]], [[-100, -100, -100, -100, -100, 1, 2, 0, 1]])
    """

    def _rearranged(self, source: Integers) -> Integers:
        return source[:, ::-1]


@dataclass(frozen=True, kw_only=True)
class SortTask(RearrangementTask):
    """Random symbols, and the same in ascending order, each as often as before.

    Scored are the first and the last of each run of equal symbols in the answer. In between, repeating
    the previous token is right, and long answers consist of little else.

    >>> inputs, targets = SortTask(symbols=4).batch(14, [0])
    >>> inputs[0].tolist(), targets[0, 7:].tolist()
    ([4, 2, 0, 3, 1, 2, 2, 5, 0, 1, 2, 2, 2], [0, 1, 2, -100, 2, 3])
    """

    @property
    def chance(self) -> float:
        """Half: repeating the previous token is right at the ends of runs, and wrong at their starts.

        Counting the answer so far gains a little more.
        """
        return 0.5

    def _rearranged(self, source: Integers) -> Integers:
        return np.sort(source, axis=1)

    def _scored(self, answer: Integers) -> NDArray[np.bool_]:
        changes = np.diff(answer, axis=1, prepend=-1, append=-1) != 0
        ends: NDArray[np.bool_] = changes[:, :-1] | changes[:, 1:]
        return ends
