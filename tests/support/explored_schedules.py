"""Python counterparts of the schedules shown by the explorer."""

from scale_invariant_attention.theory import ALiBi, LogN, Plain, ScaleInvariantTransform


def schedules(setting):
    """Schedules by their name on the page."""
    return {
        "Plain": Plain(),
        "LogN": LogN(setting["length"]),
        "ALiBi": ALiBi(setting["slope"]),
        "Scale-invariant": ScaleInvariantTransform(setting["tau"]),
    }
