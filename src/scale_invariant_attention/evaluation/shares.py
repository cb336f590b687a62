"""Shares with confidence intervals."""

import math
from dataclasses import dataclass

# Quantile of the normal distribution for intervals with 95% coverage.
CONFIDENCE = 1.959964


@dataclass(frozen=True)
class Share:
    """A proportion with Wilson's interval, which is valid at 0 and 1 too.

    The interval assumes independent trials; those of one sequence are not quite independent.

    >>> print(Share(9, 10))
    0.900 (0.596 to 0.982)
    """

    hits: int
    count: int

    @property
    def mean(self) -> float:
        """The proportion."""
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval."""
        weight = CONFIDENCE**2 / self.count
        centre = (self.mean + weight / 2) / (1 + weight)
        spread = self.mean * (1 - self.mean) / self.count + weight / (4 * self.count)
        half = CONFIDENCE * math.sqrt(spread) / (1 + weight)
        return max(0.0, centre - half), min(1.0, centre + half)

    def to_dict(self) -> dict[str, int | float]:
        """The fields of a record."""
        low, high = self.interval
        return {"found": self.hits, "count": self.count, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.3f} ({low:.3f} to {high:.3f})"
