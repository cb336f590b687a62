"""What came of the paper's claims, as a table."""

from collections.abc import Iterable

from .claims import Judgement
from .losses import Spread
from .markdown import table
from .styles import TITLES

CLAIMS_HEAD = """### What agrees with the paper

Differences in {what}, the first minus the second of what is compared: below zero is what the paper says.
Seeds are compared one by one. A difference that the spread over seeds alone would bring about more than
5 times in 100 is not decided."""


def verdict_table(judgements: Iterable[Judgement]) -> str:
    """A row for each claim: the difference in the paper and here, and whether it holds."""
    return table(("the paper says", "paper", "here", "holds here"), map(_row, judgements))


def _row(judgement: Judgement) -> tuple[str, str, str, str]:
    against = "" if judgement.against is None else f" (against {TITLES[judgement.against]})"
    printed = "no number" if judgement.paper is None else f"{judgement.paper:+.3f}"
    return judgement.claim.text + against, printed, _signed(judgement.here), judgement.verdict


def _signed(spread: Spread) -> str:
    return f"{spread}" if spread.mean < 0 else f"+{spread}"
