"""Styles: every scheme has its own."""

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.reporting.drawing import TITLES, style


def test_every_scheme_has_a_title_and_a_marker_of_its_own():
    """Markers, so that a greyscale print tells them apart."""
    assert tuple(TITLES) == tuple(schemes.names())
    markers = {style(name)["marker"] for name in schemes.names()}
    assert len(markers) == len(TITLES)
