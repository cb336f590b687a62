"""The styles of schemes."""

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.reporting.drawing import style, title_of


def test_every_scheme_has_a_title_and_a_marker_of_its_own():
    """Greyscale prints need markers to distinguish schemes."""
    names = schemes.names()
    assert len({title_of(name) for name in names}) == len(names)
    assert len({style(name)["marker"] for name in names}) == len(names)
