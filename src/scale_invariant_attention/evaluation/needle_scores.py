"""Scoring what a model answered, needle by needle, so that it cannot be fooled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..data.needles import Needle, NeedleFormat

# Of the normal distribution, for intervals that hold 95 times in 100.
CONFIDENCE = 1.959964


def found(answer: str, ended: bool, needles: Sequence[Needle], form: NeedleFormat) -> list[bool]:
    """Which needles an answer tells, each on its own.

    An answer is cut at the separator into as many entries as there are needles, and no more: what
    runs on belongs to the last. A needle is found if exactly one entry speaks of its city, and that
    entry is, to the letter, what it should be. Of an answer that did not end the last entry has run on.

    >>> needles = [Needle("Rome", "12", (0, 1), (0, 1)), Needle("Oslo", "34", (1, 2), (1, 2))]
    >>> found("Rome=12;Oslo=34", True, needles, NeedleFormat())
    [True, True]
    >>> found("Rome=12;Oslo=34;Oslo=35", True, needles, NeedleFormat())
    [True, False]
    """
    entries = answer.split(form.between, len(needles) - 1)
    # Unfinished, the last entry is no entry; that it speaks of a city still counts against it.
    whole = entries if ended else entries[:-1]
    return [
        sum(needle.city in entry for entry in entries) == 1
        and form.entry.format(city=needle.city, number=needle.number) in whole
        for needle in needles
    ]


@dataclass(frozen=True)
class Share:
    """How many of so many, with the interval of Wilson, which holds at 0 and 1 too.

    It takes them for independent; needles of one sequence are not quite.

    >>> print(Share(9, 10))
    0.900 (0.596 to 0.982)
    """

    hits: int
    count: int

    @property
    def mean(self) -> float:
        """The share itself."""
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share is, 95 times in 100."""
        weight = CONFIDENCE**2 / self.count
        centre = (self.mean + weight / 2) / (1 + weight)
        spread = self.mean * (1 - self.mean) / self.count + weight / (4 * self.count)
        half = CONFIDENCE * math.sqrt(spread) / (1 + weight)
        return max(0.0, centre - half), min(1.0, centre + half)

    def to_dict(self) -> dict[str, int | float]:
        """What is recorded of it."""
        low, high = self.interval
        return {"found": self.hits, "count": self.count, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.3f} ({low:.3f} to {high:.3f})"
