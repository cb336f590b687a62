"""The schedules that the explorer shows, in Python."""

from scale_invariant_attention.theory import ALiBi, LogN, Plain, ScaleInvariantTransform


def schedules(setting):
    """By their names on the page."""
    return {
        "Plain": Plain(),
        "LogN": LogN(setting["length"]),
        "ALiBi": ALiBi(setting["slope"]),
        "Scale-invariant": ScaleInvariantTransform(setting["tau"]),
    }
