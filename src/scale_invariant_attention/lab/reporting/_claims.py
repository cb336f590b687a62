"""The paper's claims as inequalities, and whether the records bear them out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..seeds import SeedRow, Spread
from . import paper
from .paper import OURS, PrintedTable

# Stands for the best scheme except ours at the length in question.
BEST_RIVAL = "the best rival"
RIVALS = tuple(scheme for scheme in paper.TABLE1 if scheme != OURS)

# The 95% quantiles of Student's t for means of 2, 3, 4 ... values, in standard errors.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

# A scheme, and the index of a length: 0 is the training length, 1 four times it, 2 sixteen times it.
Cell = tuple[str, int]


@dataclass(frozen=True)
class Claim:
    """The claim that the value in one cell is below that in another."""

    text: str
    lower: Cell
    higher: Cell


CLAIMS = (
    Claim("RoPE breaks beyond the training length", ("rope", 0), ("rope", 2)),
    Claim("p-RoPE breaks too", ("p-rope", 0), ("p-rope", 2)),
    Claim("NoPE is worse at the training length than RoPE", ("rope", 0), ("nope", 0)),
    Claim("NTK helps RoPE at 4 times the length", ("rope-ntk", 1), ("rope", 1)),
    Claim("LogN helps p-RoPE at 16 times the length", ("logn-p-rope", 2), ("p-rope", 2)),
    Claim("LogN+p-RoPE still gets worse with length", ("logn-p-rope", 0), ("logn-p-rope", 2)),
    Claim("ALiBi does not get worse with length", ("alibi", 2), ("alibi", 0)),
    Claim("ALiBi pays at the training length", ("rope", 0), ("alibi", 0)),
    Claim("Ours is lowest at the training length", (OURS, 0), (BEST_RIVAL, 0)),
    Claim("Ours is lowest at 4 times it", (OURS, 1), (BEST_RIVAL, 1)),
    Claim("Ours is lowest at 16 times it", (OURS, 2), (BEST_RIVAL, 2)),
    Claim("Ours gains from 4 times the length", (OURS, 1), (OURS, 0)),
    Claim("With RoPE ours is worse at 16 times it", (OURS, 2), ("scale-invariant-rope", 2)),
    Claim("With NoPE ours is worse at the training length", (OURS, 0), ("scale-invariant-nope", 0)),
)

NEEDLE_CLAIMS = (
    Claim("RoPE finds fewer at 4 times the length", ("rope", 1), ("rope", 0)),
    Claim("YaRN does not fix that", ("yarn", 1), ("yarn", 0)),
    Claim("ALiBi finds fewer at 4 times the length", ("alibi", 1), ("alibi", 0)),
    Claim("p-RoPE finds fewer at 16 times it", ("p-rope", 2), ("p-rope", 0)),
    Claim("LogN helps p-RoPE at 16 times it", ("p-rope", 2), ("logn-p-rope", 2)),
    Claim("Ours finds more than RoPE at 4 times it", ("rope", 1), (OURS, 1)),
    Claim("Ours finds more than ALiBi at 4 times it", ("alibi", 1), (OURS, 1)),
    Claim("Ours finds most at 4 times it", (BEST_RIVAL, 1), (OURS, 1)),
    Claim("Ours finds most at 16 times it", (BEST_RIVAL, 2), (OURS, 2)),
)

INFINI_CLAIMS = (
    Claim("Infini-RoPE pays at the training length", ("rope", 0), ("infini-rope", 0)),
    Claim("Infini-attention helps RoPE at 16 times it", ("infini-rope", 2), ("rope", 2)),
    Claim("Infini-RoPE gets a little worse with length", ("infini-rope", 0), ("infini-rope", 2)),
    Claim("Ours is lower than Infini-RoPE at the training length", (OURS, 0), ("infini-rope", 0)),
    Claim("Ours is lower than Infini-RoPE at 16 times it", (OURS, 2), ("infini-rope", 2)),
    Claim("Ours is lower than Infini-p-RoPE at 16 times it", (OURS, 2), ("infini-p-rope", 2)),
)

CONVERSION_CLAIMS = (
    Claim("RoPE breaks beyond the training length", ("rope", 0), ("rope", 2)),
    Claim("NTK helps RoPE at 4 times the length", ("rope-ntk", 1), ("rope", 1)),
    Claim("LogN helps p-RoPE at 16 times the length", ("logn-p-rope", 2), ("p-rope", 2)),
    Claim("NoPE is worse at the training length than ALiBi", ("alibi", 0), ("nope", 0)),
    Claim("ALiBi does not get worse with length", ("alibi", 2), ("alibi", 0)),
    Claim("Ours pays for the conversion at the training length", ("rope", 0), (OURS, 0)),
    Claim("Ours pays less than ALiBi", (OURS, 0), ("alibi", 0)),
    Claim("Ours is lowest at 4 times the length", (OURS, 1), (BEST_RIVAL, 1)),
    Claim("Ours is lowest at 16 times it", (OURS, 2), (BEST_RIVAL, 2)),
    Claim("Ours gets a little worse with length", (OURS, 0), (OURS, 2)),
)


@dataclass(frozen=True)
class Judgement:
    """The difference of a claim, lower minus higher, in the paper and here.

    `against` names the best rival here, if the claim is about it; `paper` is None where the paper prints
    no number.
    """

    claim: Claim
    paper: float | None
    here: Spread
    against: str | None

    @property
    def verdict(self) -> str:
        """Whether the difference here has the claimed sign, beyond the spread over seeds."""
        if self.here.standard_error is None:
            return "not decided: one seed"
        factor = STUDENT[min(self.here.count - 2, len(STUDENT) - 1)]
        if abs(self.here.mean) <= factor * self.here.standard_error:
            return "not decided"
        return "yes" if self.here.mean < 0 else "**no**"


def judged(
    rows: Mapping[str, SeedRow],
    claims: Sequence[Claim] = CLAIMS,
    printed: PrintedTable = paper.TABLE1,
) -> list[Judgement]:
    """The claims whose schemes are recorded, seeds compared one by one."""
    judgements = (_judged(claim, rows, printed) for claim in claims)
    return [judgement for judgement in judgements if judgement is not None]


def _judged(claim: Claim, rows: Mapping[str, SeedRow], printed: PrintedTable) -> Judgement | None:
    """None if one of its schemes is not recorded, or not with the same seeds."""
    schemes = {claim.lower[0], claim.higher[0]}
    needed = schemes - {BEST_RIVAL} | set(RIVALS if BEST_RIVAL in schemes else ())
    if not needed <= rows.keys():
        return None

    def mean(name: str, index: int) -> float:
        return list(rows[name].spreads.values())[index].mean

    low, high = _hardest(claim, mean)
    lower, higher = _seeds(rows, low), _seeds(rows, high)
    common = lower.keys() & higher.keys()
    if not common:
        return None
    here = Spread.over([lower[seed] - higher[seed] for seed in sorted(common)])
    rival = {low[0], high[0]} - schemes
    return Judgement(claim, _in_paper(claim, printed), here, rival.pop() if rival else None)


def _hardest(claim: Claim, value: Callable[[str, int], float]) -> tuple[Cell, Cell]:
    """Both cells of a claim, with the best rival replaced by its name."""
    (lower, at), (higher, over) = claim.lower, claim.higher
    if lower == BEST_RIVAL:
        lower = max(RIVALS, key=lambda name: value(name, at))
    if higher == BEST_RIVAL:
        higher = min(RIVALS, key=lambda name: value(name, over))
    return (lower, at), (higher, over)


def _seeds(rows: Mapping[str, SeedRow], cell: Cell) -> dict[int, float]:
    scheme, index = cell
    return {seed: list(losses.values())[index] for seed, losses in rows[scheme].seeds.items()}


def _in_paper(claim: Claim, printed: PrintedTable) -> float | None:
    """None where the paper prints no number for one of the schemes."""
    if not {claim.lower[0], claim.higher[0]} <= printed.keys() | {BEST_RIVAL}:
        return None
    low, high = _hardest(claim, lambda name, index: printed[name][index])
    return printed[low[0]][low[1]] - printed[high[0]][high[1]]
