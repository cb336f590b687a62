"""Gaussian scores in theory: the numbers that the formulas give."""

import pytest

from scale_invariant_attention.analysis import gaussian_attention


@pytest.mark.parametrize(
    ("schedule", "share", "inside"),
    [("plain", 0.024, 4.01), ("logn", 0.021, None), ("scale-invariant", 0.417, 2.72)],
)
def test_shares_and_entropies_at_4096(schedule, share, inside):
    found = gaussian_attention(schedule, 4096)
    recent = found.recent_share
    assert abs(recent.mean - share) < 4 * recent.standard_error + 5e-4
    if inside is not None:
        entropy = found.range_entropy[10, 100]
        assert abs(entropy.mean - inside) < 4 * entropy.standard_error + 5e-3
    assert found.global_entropy.mean > found.range_entropy[10, 100].mean


def test_ranges_outside_the_context_are_left_out():
    assert list(gaussian_attention("plain", 256, samples=4).range_entropy) == [(10, 100)]


def test_schedules_by_name():
    with pytest.raises(ValueError, match="schedule must be one of plain, logn, scale-invariant"):
        gaussian_attention("alibi", 100)
