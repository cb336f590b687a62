"""Why attention needs scale invariance, in minutes on a CPU: a fact of theory, and two experiments.

Small models differ in their scheme alone. Three read text, three smaller ones look up what they are
asked for; they are trained on short contexts and tested on long ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...theory import ALiBi, LogitSchedule, Plain, ScaleInvariantTransform, expected_range_mass
from . import recall
from .scales import SCALES
from .trials import Trial

PLAIN, ALIBI, SCALE_INVARIANT = "plain", "ALiBi", "scale-invariant"

# Of the published ALiBi slopes the gentlest: the head that sees farthest.
ALIBI_SLOPE = 2.0**-8

SCHEMES = ("rope", "alibi", "scale-invariant-p-rope")
STEPS = 200
RECALL_STEPS = 350
EVALUATED_TOKENS = 65_536


@dataclass(frozen=True)
class DecadeMasses:
    """The expected weight on the distances `[start, 10 * start)`, for each scheme and start.

    `limit` is what the scale-invariant mass of a decade tends to.
    """

    starts: tuple[int, ...]
    masses: dict[str, tuple[float, ...]]
    limit: float


def decade_masses(starts: Sequence[int] = (1, 10, 100, 1000, 10_000)) -> DecadeMasses:
    """The expected weight, before the softmax divides by the sum, on each decade of distances.

    Scores are independent N(0, 1), which is what queries and keys normalised per head give for
    unrelated tokens.

    >>> [round(mass, 1) for mass in decade_masses([100, 1000]).masses["scale-invariant"]]
    [36.6, 37.8]
    """
    transform = ScaleInvariantTransform()
    schedules: dict[str, LogitSchedule] = {
        PLAIN: Plain(),
        ALIBI: ALiBi(ALIBI_SLOPE),
        SCALE_INVARIANT: transform,
    }
    masses = {
        scheme: tuple(expected_range_mass(schedule, start, 10 * start) for start in starts)
        for scheme, schedule in schedules.items()
    }
    return DecadeMasses(tuple(starts), masses, transform.range_mass_limit(10))


def trials() -> list[Trial]:
    """Those of Table 1 in miniature with fewer steps, of three schemes.

    >>> [trial.name for trial in trials()]
    ['rope-seed-0', 'alibi-seed-0', 'scale-invariant-p-rope-seed-0']
    """
    scale = replace(
        SCALES["mini"], evaluation=replace(SCALES["mini"].evaluation, tokens=EVALUATED_TOKENS)
    )
    # One validation, at the end and of a few tokens: what is shown is evaluated afterwards.
    changes = {
        "steps": STEPS,
        "validate_every": 0,
        "validation_tokens": 256,
        "validation_lengths": (256,),
    }
    return [scale.trial(scheme, 0, changes) for scheme in SCHEMES]


def recall_trials() -> list[Trial]:
    """Those of the recall experiment with fewer steps, of the same schemes.

    >>> [trial.name for trial in recall_trials()]
    ['recall-rope-seed-0', 'recall-alibi-seed-0', 'recall-scale-invariant-p-rope-seed-0']
    """
    changes = {
        "steps": RECALL_STEPS,
        "validate_every": 0,
        "validation_tokens": recall.LENGTH,
    }
    return recall.trials(SCHEMES, (0,), changes)
