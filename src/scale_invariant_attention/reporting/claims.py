"""What the paper's Table 1 says in words, each as an inequality that records can be held to."""

from collections.abc import Mapping
from dataclasses import dataclass

from . import paper
from .losses import SeedRow, Spread

OURS = "scale-invariant-p-rope"
# Stands for the best scheme but ours at the length in question.
BEST_RIVAL = "the best rival"
RIVALS = tuple(scheme for scheme in paper.TABLE1 if scheme != OURS)

# How many standard errors a mean of 2, 3, 4 ... values may be off, 95 times in 100 (Student).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

# A scheme, and the place of a length: 0 is the trained one, 1 four times it, 2 sixteen times it.
Cell = tuple[str, int]


@dataclass(frozen=True)
class Claim:
    """That the loss in one cell is below that in another."""

    text: str
    lower: Cell
    higher: Cell


CLAIMS = (
    Claim("RoPE breaks beyond the trained length", ("rope", 0), ("rope", 2)),
    Claim("p-RoPE breaks too", ("p-rope", 0), ("p-rope", 2)),
    Claim("NoPE is worse at the trained length than RoPE", ("rope", 0), ("nope", 0)),
    Claim("NTK helps RoPE at 4 times the length", ("rope-ntk", 1), ("rope", 1)),
    Claim("LogN helps p-RoPE at 16 times the length", ("logn-p-rope", 2), ("p-rope", 2)),
    Claim("LogN+p-RoPE still gets worse with length", ("logn-p-rope", 0), ("logn-p-rope", 2)),
    Claim("ALiBi does not get worse with length", ("alibi", 2), ("alibi", 0)),
    Claim("ALiBi pays at the trained length", ("rope", 0), ("alibi", 0)),
    Claim("Ours is lowest at the trained length", (OURS, 0), (BEST_RIVAL, 0)),
    Claim("Ours is lowest at 4 times it", (OURS, 1), (BEST_RIVAL, 1)),
    Claim("Ours is lowest at 16 times it", (OURS, 2), (BEST_RIVAL, 2)),
    Claim("Ours gains from 4 times the length", (OURS, 1), (OURS, 0)),
    Claim("With RoPE ours is worse at 16 times it", (OURS, 2), ("scale-invariant-rope", 2)),
    Claim("With NoPE ours is worse at the trained length", (OURS, 0), ("scale-invariant-nope", 0)),
)


@dataclass(frozen=True)
class Judgement:
    """What came of a claim: the difference, lower minus higher, in the paper and here.

    `against` names the rival here where the claim is about the best of them; `paper` is None where the
    paper prints no number.
    """

    claim: Claim
    paper: float | None
    here: Spread
    against: str | None

    @property
    def verdict(self) -> str:
        """Whether the difference here has the sign that the claim has, beyond what seeds do."""
        if self.here.standard_error is None:
            return "not decided: one seed"
        factor = STUDENT[min(self.here.count - 2, len(STUDENT) - 1)]
        if abs(self.here.mean) <= factor * self.here.standard_error:
            return "not decided"
        return "yes" if self.here.mean < 0 else "**no**"


def judged(rows: Mapping[str, SeedRow]) -> list[Judgement]:
    """All claims whose schemes have been recorded, with seeds compared one by one."""
    return [found for claim in CLAIMS if (found := _judged(claim, rows)) is not None]


def _judged(claim: Claim, rows: Mapping[str, SeedRow]) -> Judgement | None:
    """None if what it compares is not recorded, or not with the same seeds."""
    schemes = {claim.lower[0], claim.higher[0]}
    needed = schemes - {BEST_RIVAL} | set(RIVALS if BEST_RIVAL in schemes else ())
    if not needed <= rows.keys():
        return None
    rival, place = claim.higher
    is_best = rival == BEST_RIVAL
    if is_best:
        rival = min(RIVALS, key=lambda name: list(rows[name].spreads.values())[place].mean)
    lower, higher = _seeds(rows, claim.lower), _seeds(rows, (rival, place))
    common = lower.keys() & higher.keys()
    if not common:
        return None
    here = Spread.of([lower[seed] - higher[seed] for seed in sorted(common)])
    return Judgement(claim, _in_paper(claim), here, rival if is_best else None)


def _seeds(rows: Mapping[str, SeedRow], cell: Cell) -> dict[int, float]:
    scheme, place = cell
    return {seed: list(losses.values())[place] for seed, losses in rows[scheme].seeds.items()}


def _in_paper(claim: Claim) -> float | None:
    values = []
    for scheme, place in (claim.lower, claim.higher):
        if scheme == BEST_RIVAL:
            values.append(min(paper.TABLE1[rival][place] for rival in RIVALS))
        elif scheme in paper.TABLE1:
            values.append(paper.TABLE1[scheme][place])
    return values[0] - values[1] if len(values) == 2 else None
