"""State that every token may change: flip-flop, n-back and counting in runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...arguments import integer, real_number
from ._task import NOT_SCORED, Integers, SequenceTask, integers, next_tokens

# Token ids of flip-flop after the two bits.
WRITE, READ, IGNORE, START = 2, 3, 4, 5


@dataclass(frozen=True, kw_only=True)
class FlipFlopTask(SequenceTask):
    """Instructions with a bit each: write one, ignore one, or read the one that was written last.

    The first instruction is to write, the last to read. A start token precedes them, or two where the
    length is even. Only the bits of reads are scored.

    Args:
        ignored: probability of an instruction to ignore its bit; the others are writes or reads alike.

    >>> inputs, targets = FlipFlopTask().batch(9, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[5, 2, 1, 3, 1, 4, 0, 3]], [[-100, -100, -100, 1, -100, -100, -100, 1]])
    """

    ignored: float = 0.8

    def __post_init__(self) -> None:
        if real_number("ignored", self.ignored, at_least=0) > 1:
            raise ValueError(f"ignored must be at most 1, got {self.ignored}")

    @property
    def vocab_size(self) -> int:
        """Two bits, three instructions, and start."""
        return START + 1

    @property
    def shortest(self) -> int:
        """The length of a start token, a write and a read."""
        return 5

    @property
    def chance(self) -> float:
        """One in two."""
        return 0.5

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        count = (length - 1) // 2
        which, bit = np.split(self.uniform(length, numbers, 2 * count), 2, axis=1)
        bits = integers(bit, 2)
        # From `ignored` to 1, half are writes and half are reads.
        other = np.where(which < (1 + self.ignored) / 2, WRITE, READ)
        instructions = np.where(which < self.ignored, IGNORE, other)
        instructions[:, 0], instructions[:, -1] = WRITE, READ
        # The index of the last write so far.
        written = np.where(instructions == WRITE, np.arange(count), 0)
        stored = np.take_along_axis(bits, np.maximum.accumulate(written, axis=1), axis=1)
        reads = instructions == READ

        tokens = np.full((len(numbers), length), START)
        tokens[:, -2 * count :: 2] = instructions
        tokens[:, 1 - 2 * count :: 2] = np.where(reads, stored, bits)
        scored = np.zeros(tokens.shape, bool)
        scored[:, 1 - 2 * count :: 2] = reads
        return next_tokens(tokens, scored)


@dataclass(frozen=True, kw_only=True)
class BackTask(SequenceTask):
    """After each of a row of random symbols: which one came so many symbols before?

    Token ids are the symbols, then the start token before them. Answers are not part of the sequence.

    Args:
        symbols: number of different symbols.
        back: the distance to the symbol in question; 0 is the last one read.

    >>> inputs, targets = BackTask(symbols=4).batch(8, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[4, 3, 3, 0, 0, 1, 2]], [[-100, -100, -100, 3, 3, 0, 0]])
    """

    symbols: int = 16
    back: int = 2

    def __post_init__(self) -> None:
        integer("symbols", self.symbols, at_least=2)
        integer("back", self.back, at_least=0)

    @property
    def vocab_size(self) -> int:
        """Symbols and start."""
        return self.symbols + 1

    @property
    def shortest(self) -> int:
        """The length with one answer."""
        return self.back + 3

    @property
    def chance(self) -> float:
        """One in as many as there are symbols."""
        return 1 / self.symbols

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        symbols = integers(self.uniform(length, numbers, length - 2), self.symbols)
        inputs = np.full((len(numbers), length - 1), self.symbols)
        inputs[:, 1:] = symbols
        targets = np.full_like(inputs, NOT_SCORED)
        targets[:, 1 + self.back :] = symbols[:, : length - 2 - self.back]
        return inputs, targets


@dataclass(frozen=True, kw_only=True)
class LocalCountTask(SequenceTask):
    """Runs of equal symbols: after each symbol, how many of its run came before it?

    Lengths of runs are uniformly random. Token ids are the symbols, or counts, then the start token
    before the symbols. Answers are not part of the sequence.

    Args:
        symbols: number of different symbols; neighbouring runs have different ones.
        longest: the greatest length of a run.

    >>> inputs, targets = LocalCountTask(symbols=4, longest=3).batch(10, [0])
    >>> inputs.tolist(), targets.tolist()
    ([[4, 0, 0, 1, 2, 2, 1, 0, 0]], [[-100, 0, 1, 0, 0, 1, 0, 0, 1]])
    """

    symbols: int = 16
    longest: int = 16

    def __post_init__(self) -> None:
        integer("symbols", self.symbols, at_least=2)
        integer("longest", self.longest, at_least=1)

    @property
    def vocab_size(self) -> int:
        """Symbols, or counts if there are more, and start."""
        return max(self.symbols, self.longest) + 1

    @property
    def shortest(self) -> int:
        """The length with one answer."""
        return 3

    @property
    def chance(self) -> float:
        """The share of runs among symbols: each has one that is its first."""
        return 2 / (self.longest + 1)

    def examples(self, length: int, numbers: Sequence[int]) -> tuple[Integers, Integers]:
        """See :class:`SequenceTask`."""
        rows, count = len(numbers), length - 2
        sizes, changes = np.split(self.uniform(length, numbers, 2 * count), 2, axis=1)
        # As many runs as there are symbols are enough; those behind the last symbol are left out.
        ends = np.cumsum(1 + integers(sizes, self.longest), axis=1)
        begins = np.zeros((rows, count + 1), np.int64)
        inside = ends < count
        begins[np.nonzero(inside)[0], ends[inside]] = 1
        run = np.cumsum(begins[:, :count], axis=1)
        # From run to run, any other symbol is as likely.
        step = 1 + integers(changes, self.symbols - 1)
        step[:, 0] = integers(changes[:, 0], self.symbols)
        symbol = np.cumsum(step, axis=1) % self.symbols
        inputs = np.full((rows, length - 1), self.vocab_size - 1)
        inputs[:, 1:] = np.take_along_axis(symbol, run, axis=1)
        first = np.where(begins[:, :count] == 1, np.arange(count), 0)
        targets = np.full_like(inputs, NOT_SCORED)
        targets[:, 1:] = np.arange(count) - np.maximum.accumulate(first, axis=1)
        return inputs, targets
