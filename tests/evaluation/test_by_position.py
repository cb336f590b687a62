"""Loss by position, over documents that are long enough."""

import numpy as np
import pytest
from position_models import LossIsPosition, LossIsTarget

from scale_invariant_attention.data import TokenStream
from scale_invariant_attention.evaluation import loss_by_position, position_bins


def stream(*lengths):
    """Documents of these lengths, which start with 0; all other tokens are the document's number."""
    parts = [np.full(n, number, np.uint8) for number, n in enumerate(lengths, start=1)]
    for part in parts:
        part[0] = 0
    return TokenStream(parts, vocab_size=256, document_start=0)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 64, 1000])
@pytest.mark.parametrize("per_doubling", [1, 2, 4])
def test_bins_cover_every_position_once(length, per_doubling):
    edges = position_bins(length, per_doubling)
    assert edges[0] == 1
    assert edges[-1] == length + 1
    assert edges == sorted(set(edges))


def test_the_loss_of_a_bin_is_that_of_its_positions():
    rows = loss_by_position(LossIsPosition(), stream(20, 20), 16)
    # A target with n tokens before it is at index n - 1, which is what it costs.
    for row in rows:
        assert row.loss == pytest.approx((row.start + row.stop - 1) / 2 - 1)
        assert row.standard_error == 0
    assert rows[0].start == 1
    assert rows[-1].stop == 17


def test_only_documents_that_are_long_enough_count_each_from_its_start():
    model = LossIsPosition()
    rows = loss_by_position(model, stream(17, 16, 40), 16)
    shown = [row for tokens, _ in model.shown for row in tokens.tolist()]
    assert shown == [[0] + [1] * 15, [0] + [3] * 15]
    assert {row.documents for row in rows} == {2}


def test_the_error_is_over_documents():
    rows = loss_by_position(LossIsTarget(), stream(20, 20), 16)
    # Targets are 1 in one document and 2 in the other.
    assert {(row.loss, row.standard_error) for row in rows} == {(1.5, 0.5)}
    assert loss_by_position(LossIsTarget(), stream(20), 16)[0].standard_error is None


def test_the_number_of_documents_can_be_bounded():
    seen = []
    rows = loss_by_position(LossIsTarget(), stream(20, 20, 20), 16, at_most=2, progress=seen.append)
    assert rows[0].documents == seen[-1] == 2
    assert rows[0].loss == 1.5


def test_documents_that_are_too_short_are_refused():
    with pytest.raises(ValueError, match="length must be below the 20 tokens of the longest"):
        loss_by_position(LossIsTarget(), stream(20), 20)
