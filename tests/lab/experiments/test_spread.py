"""How the spread was chosen, and trainings at longer lengths: other seeds, other text, same tokens."""

import pytest

from scale_invariant_attention.lab.experiments.catalogue import EXPERIMENTS
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.spread import spread_needle_trials, spread_trials
from scale_invariant_attention.lab.experiments.spread_candidates import SPREAD_CANDIDATES
from scale_invariant_attention.lab.experiments.table1 import length_trials, loss_trials
from scale_invariant_attention.lab.experiments.table2 import needle_trials
from scale_invariant_attention.lab.experiments.trials import find_record
from scale_invariant_attention.schemes.distance import ScaleInvariant

SMALL = {
    **{"steps": 2, "batch_size": 2, "width": 32, "heads": 2, "layers": 1, "length": 32},
    **{"validation_lengths": (32,), "validation_tokens": 64},
}


def test_candidates_have_seeds_and_text_that_the_tables_do_not_use():
    losses, needles = loss_trials(), needle_trials()
    scored = losses[0].evaluation.tokens
    for trial in spread_trials():
        assert trial.config.seed not in {it.config.seed for it in losses}
        assert trial.evaluation.skip >= scored
    for trial in spread_needle_trials():
        assert trial.config.seed not in {it.config.seed for it in needles}
        assert (trial.evaluation.split, needles[0].evaluation.split) == ("train", None)


def test_every_candidate_has_the_options_of_its_name():
    for trial in spread_trials(seeds=(3,)):
        distance = trial.config.model_config().scheme.distance
        assert isinstance(distance, ScaleInvariant)
        name = trial.name.removeprefix("spread-").removesuffix("-seed-3")
        if name.startswith("1-to-"):
            assert (distance.tau, distance.highest_tau) == (1.0, float(name.split("-")[2]))
        assert distance.learn_tau == name.endswith("learned")
        assert trial.config.length == int(name.partition("-at-")[2] or 256)
        rotary = trial.config.model_config().scheme.rotary
        shares = {"quarter": 0.25, "eighth": 0.125, "half": 0.5, "10-in-all-heads": 0.5}
        share = next((it for word, it in shares.items() if word in name), None)
        assert getattr(rotary, "rotating", None) == share


@pytest.mark.parametrize("trials", [spread_trials, spread_needle_trials, length_trials])
def test_every_length_has_as_many_tokens(trials):
    built = trials()
    assert len({it.config.batch_size * it.config.length * it.config.steps for it in built}) == 1
    assert len({it.name for it in built}) == len(built)


def test_the_base_of_p_rope_grows_with_the_training_length():
    trials = [*length_trials(), *spread_trials(seeds=(3,))]
    bases = {
        it.config.scheme_options["base"] / it.config.length
        for it in trials
        if "base" in it.config.scheme_options
    }
    assert bases == {16 / 256}


def test_a_training_at_the_usual_length_is_that_of_table_1():
    usual = [it for it in length_trials() if it.config.length == 256]
    assert len(usual) == 3
    assert all(it in loss_trials() for it in usual)


def test_candidates_are_recorded_on_the_text_after_the_tables(tmp_path):
    evaluation = {"lengths": (32, 64), "tokens": 128}
    names = ("1-to-30-quarter", "1-to-30-quarter-learned")
    trials = spread_trials("mini", names, (3,), SMALL, evaluation)
    # Of the same weights, on the text that Table 1 scores.
    others = spread_trials("mini", names[:1], (3,), SMALL, {**evaluation, "skip": 0})
    experiment = EXPERIMENTS["spread"]
    for folder, group in (("results", trials), ("others", others)):
        run_in_turn(group, tmp_path / "runs", tmp_path / folder, device="cpu")
    first, second = (find_record(it, tmp_path / "results") for it in trials)
    labels = ["1 to 30, a quarter rotating", "1 to 30, learned, a quarter rotating"]
    assert [experiment.label(it) for it in (first, second)] == labels
    other = find_record(others[0], tmp_path / "others")
    assert first.losses_by_length().keys() == {32, 64}
    assert first.losses_by_length() != other.losses_by_length()


def test_an_unknown_candidate_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"no candidate '1-to-30-hal' \(did you mean '1-to-30-half'\?\)"
    ):
        spread_trials("mini", ("1-to-30-hal",))
    assert "1-to-30-hal" not in SPREAD_CANDIDATES


def test_every_candidate_has_a_label_of_its_own():
    trials = spread_trials("mini", seeds=(3,))
    labels = [EXPERIMENTS["spread"].label(it) for it in trials]
    assert len(set(labels)) == len(trials)
    assert {"10 in all heads, half rotating", "1 to 30, no rotation"} <= set(labels)
    assert "1 to 15, a quarter rotating, trained at 128" in labels
