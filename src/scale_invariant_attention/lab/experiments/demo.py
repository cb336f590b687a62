"""The demo: why attention needs scale invariance, in theory and in two experiments of minutes on a CPU.

Small models that differ in their scheme alone are trained on short contexts and tested on long ones:
three read text, three smaller ones recall values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...theory import ALiBi, LogitSchedule, Plain, ScaleInvariantTransform, expected_range_mass
from .recall import LENGTH, recall_trials
from .table1 import loss_trials
from .trials import TrainingTrial

PLAIN, ALIBI, SCALE_INVARIANT = "plain", "ALiBi", "scale-invariant"

# The gentlest of ALiBi's published slopes: the head that sees farthest.
ALIBI_SLOPE = 2.0**-8

SCHEMES = ("rope", "alibi", "scale-invariant-p-rope")


@dataclass(frozen=True)
class DecadeMasses:
    """Expected weight on the distances `[start, 10 * start)`, for each scheme and start.

    `limit` is the limit of the scale-invariant mass of a decade.
    """

    starts: tuple[int, ...]
    masses: dict[str, tuple[float, ...]]
    limit: float


def decade_masses(starts: Sequence[int] = (1, 10, 100, 1000, 10_000)) -> DecadeMasses:
    """Expected weight, before the softmax divides by the sum, on each decade of distances.

    Scores are independent N(0, 1), as queries and keys normalised per head give them for unrelated
    tokens.

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


def demo_loss_trials() -> list[TrainingTrial]:
    """The trials of Table 1 in miniature for three schemes, with fewer steps.

    >>> [trial.name for trial in demo_loss_trials()]
    ['rope-seed-0', 'alibi-seed-0', 'scale-invariant-p-rope-seed-0']
    """
    # One short validation, at the end: the losses shown are evaluated afterwards.
    changes = {
        "steps": 200,
        "validate_every": 0,
        "validation_tokens": 256,
        "validation_lengths": (256,),
    }
    return loss_trials("mini", SCHEMES, (0,), changes, {"tokens": 65_536})


def demo_recall_trials() -> list[TrainingTrial]:
    """The trials of the recall experiment for the same schemes, with fewer steps.

    >>> [trial.name for trial in demo_recall_trials()]
    ['recall-rope-seed-0', 'recall-alibi-seed-0', 'recall-scale-invariant-p-rope-seed-0']
    """
    changes = {"steps": 350, "validate_every": 0, "validation_tokens": LENGTH}
    return recall_trials("mini", SCHEMES, (0,), changes)
