"""Claims: the paper's table satisfies all of them, a negated table none."""

import pytest
from small_records import table

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.records import TrainingRecord
from scale_invariant_attention.lab.reporting import paper
from scale_invariant_attention.lab.reporting._claims import CLAIMS, RIVALS, judged
from scale_invariant_attention.lab.seeds import scheme_of, seed_rows

# The paper states the results of its ablations in words, to which these numbers correspond.
ABLATIONS = {
    "scale-invariant-rope": (3.250, 3.300, 3.500),
    "scale-invariant-nope": (3.300, 3.300, 3.300),
}
# Schemes that no claim is about.
OURS = {
    name: (3.3, 3.3, 3.3) for name in schemes.names() if name not in {*paper.TABLE1, *ABLATIONS}
}
PAPER = {**paper.TABLE1, **ABLATIONS, **OURS}


def rows(losses_of, **options):
    return seed_rows(table(losses_of, **options), scheme_of, TrainingRecord.losses_by_length)


def noisy(scheme, seed):
    return tuple(loss + 0.001 * seed for loss in PAPER[scheme])


def test_the_papers_own_numbers_satisfy_every_claim():
    judgements = judged(rows(noisy))
    assert len(judgements) == len(CLAIMS)
    for judgement in judgements:
        assert judgement.verdict == "yes", judgement
        if judgement.paper is not None:
            assert judgement.here.mean == pytest.approx(judgement.paper)
            assert judgement.paper < 0
    assert [it.claim.text for it in judgements if it.paper is None] == [
        "With RoPE ours is worse at 16 times it",
        "With NoPE ours is worse at the training length",
    ]


def test_negated_numbers_satisfy_no_claim_without_a_best_rival():
    judgements = judged(rows(lambda scheme, seed: tuple(-loss for loss in noisy(scheme, seed))))
    assert {it.verdict for it in judgements if it.against is None} == {"**no**"}


def test_the_best_rival_is_the_best_at_that_length():
    against = [it.against for it in judged(rows(noisy)) if it.against is not None]
    assert against == ["logn-p-rope", "logn-p-rope", "alibi"]
    assert len(RIVALS) == 9


def test_a_difference_whose_sign_varies_by_seed_is_not_decided():
    def losses_of(scheme, seed):
        return (1.0, 1.0, 1.0 + (0.1 if seed == 1 else -0.1) * (scheme == "rope"))

    first = judged(rows(losses_of))[0]
    assert first.claim.lower[0] == "rope"
    assert first.verdict == "not decided"


def test_seeds_are_compared_one_by_one():
    """An effect that a seed has on all schemes alike cancels in a difference."""
    shift = (0.0, 5.0, -3.0)
    found = judged(rows(lambda scheme, seed: tuple(x + shift[seed] for x in PAPER[scheme])))
    assert all(it.here.standard_error < 1e-9 for it in found)


def test_claims_about_schemes_that_are_not_recorded_are_left_out():
    few = {name: row for name, row in rows(noisy).items() if name in ("rope", "p-rope")}
    assert [it.claim.lower[0] for it in judged(few)] == ["rope", "p-rope"]


def test_one_seed_decides_nothing():
    assert {it.verdict for it in judged(rows(noisy, seeds=(0,)))} == {"not decided: one seed"}


def test_seeds_that_are_not_common_are_not_compared():
    records = [
        *table(noisy, seeds=(0,)),
        *(it for it in table(noisy, seeds=(1,)) if it.scheme == "rope"),
    ]
    only_second = [it for it in records if it.scheme != "rope" or it.seed == 1]
    found = seed_rows(only_second, scheme_of, TrainingRecord.losses_by_length)
    compared = [it.claim for it in judged(found)]
    assert CLAIMS[0] in compared
    assert not [
        claim for claim in compared if {"rope", "nope"} == {claim.lower[0], claim.higher[0]}
    ]
