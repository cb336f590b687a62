"""The mathematics of scale-invariant attention: the transform, its conditions and its rivals.

>>> from scale_invariant_attention.theory import ScaleInvariantTransform, expected_range_mass
>>> transform = ScaleInvariantTransform(tau=10.0)
>>> round(expected_range_mass(transform, 10_000, 100_000), 2)
37.95
>>> round(transform.range_mass_limit(10), 2)
37.96
"""

from ._conditions import (
    expected_range_mass,
    expected_range_negentropy,
    expected_shell_mass,
    expected_shell_negentropy,
    expected_weight,
    expected_weight_log_weight,
    range_entropy,
    range_entropy_from_logits,
)
from ._sampling import Estimate, sample_range_entropy, sample_recent_share
from .schedules import ALiBi, LogitSchedule, LogN, Plain
from .transform import ScaleInvariantTransform

__all__ = [
    "ALiBi",
    "Estimate",
    "LogN",
    "LogitSchedule",
    "Plain",
    "ScaleInvariantTransform",
    "expected_range_mass",
    "expected_range_negentropy",
    "expected_shell_mass",
    "expected_shell_negentropy",
    "expected_weight",
    "expected_weight_log_weight",
    "range_entropy",
    "range_entropy_from_logits",
    "sample_range_entropy",
    "sample_recent_share",
]
