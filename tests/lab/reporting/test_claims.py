"""Claims: the paper's table has to fulfil them all, and a table turned round none."""

import pytest
from small_records import table

from scale_invariant_attention.lab.reporting import paper
from scale_invariant_attention.lab.reporting.claims import CLAIMS, RIVALS, judged
from scale_invariant_attention.lab.reporting.losses import scheme_of, seed_rows

# Of the ablations the paper says in words what these numbers say.
ABLATIONS = {
    "scale-invariant-rope": (3.250, 3.300, 3.500),
    "scale-invariant-nope": (3.300, 3.300, 3.300),
}
PAPER = {**paper.TABLE1, **ABLATIONS}


def rows(losses_of, **options):
    return {row.label: row for row in seed_rows(table(losses_of, **options), scheme_of)}


def noisy(scheme, seed):
    return tuple(loss + 0.001 * seed for loss in PAPER[scheme])


def test_the_papers_own_numbers_fulfil_every_claim():
    judgements = judged(rows(noisy))
    assert len(judgements) == len(CLAIMS)
    for judgement in judgements:
        assert judgement.verdict == "yes", judgement
        if judgement.paper is not None:
            assert judgement.here.mean == pytest.approx(judgement.paper)
            assert judgement.paper < 0
    assert [it.claim.text for it in judgements if it.paper is None] == [
        "With RoPE ours is worse at 16 times it",
        "With NoPE ours is worse at the trained length",
    ]


def test_the_opposite_fulfils_none_of_those_without_a_best_rival():
    judgements = judged(rows(lambda scheme, seed: tuple(-loss for loss in noisy(scheme, seed))))
    assert {it.verdict for it in judgements if it.against is None} == {"**no**"}


def test_the_best_rival_is_the_best_at_that_length():
    by_place = [it.against for it in judged(rows(noisy)) if it.against is not None]
    assert by_place == ["logn-p-rope", "logn-p-rope", "alibi"]
    assert len(RIVALS) == 9


def test_what_seeds_turn_round_is_not_decided():
    def losses_of(scheme, seed):
        return (1.0, 1.0, 1.0 + (0.1 if seed == 1 else -0.1) * (scheme == "rope"))

    first = judged(rows(losses_of))[0]
    assert first.claim.lower[0] == "rope"
    assert first.verdict == "not decided"


def test_seeds_are_compared_one_by_one():
    """What a seed does to all schemes alike is no error of a difference."""
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
        *(it for it in table(noisy, seeds=(1,)) if it["config"]["scheme"] == "rope"),
    ]
    only_second = [
        it for it in records if it["config"]["scheme"] != "rope" or it["config"]["seed"] == 1
    ]
    found = {row.label: row for row in seed_rows(only_second, scheme_of)}
    compared = [it.claim for it in judged(found)]
    assert CLAIMS[0] in compared
    assert not [
        claim for claim in compared if {"rope", "nope"} == {claim.lower[0], claim.higher[0]}
    ]
