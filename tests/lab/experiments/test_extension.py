"""The study of extensions: every variant converts and is measured as it says."""

import json

import pytest
from tiny_conversions import shrunk

from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.experiments.catalogue import EXPERIMENTS
from scale_invariant_attention.lab.experiments.running import run_in_turn

STUDY = ("extension", "extension-choice", "extension-strings", "extension-needles")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extension")
    names = ("rope", "yarn-by-length", "transform-slow-beyond")
    trials = [shrunk(it) for it in extension.reported_trials("mini", names, (0,))]
    trials = [it for it in trials if it.config.share == 0]
    run_in_turn(trials, folder / "runs", folder / "results")
    return folder


def losses(folder, name):
    record = json.loads((folder / "results" / f"extension-{name}-seed-0.json").read_text())
    return [row["loss"] for row in record["losses"]]


@pytest.mark.parametrize("family", extension.FAMILIES)
def test_rows_that_change_long_texts_alone_agree_on_short_ones(folder, family):
    rope, by_length, ours = (
        losses(folder, f"{family}-{name}-0")
        for name in ("rope", "yarn-by-length", "transform-slow-beyond")
    )
    assert by_length[0] == pytest.approx(rope[0], rel=1e-5) and by_length[1] != rope[1]
    assert ours[0] != rope[0] and ours[1] != rope[1]


def test_fine_tuning_has_a_share_of_the_tokens():
    shares = {
        trial.config.share: trial.config.continued and trial.config.continued.steps
        for trial in extension.reported_trials("mini", ("rope",), (0,))
    }
    assert extension.FIRST.steps == 2_000
    assert shares == {0.0: None, 0.01: 20, 0.1: 200}


@pytest.mark.parametrize("build", [extension.reported_trials, extension.choice_trials])
def test_every_variant_converts(folder, build):
    variants = extension.VARIANTS if build is extension.reported_trials else extension.CHOICES
    by_name = {
        it.config.variant: shrunk(it) for it in build(seeds=(0,)) if it.config.family == "llama"
    }
    assert by_name.keys() == variants.keys()
    first = next(iter(by_name.values())).first_model(folder / "runs")
    for name, trial in by_name.items():
        # Converting starts from the original, whatever the model was converted to before.
        model = trial.converted(first)
        settings = getattr(model.config, "scale_invariant_attention", {})
        assert ("calibration" in settings) == variants[name].calibrated
        assert ("mean" in settings.get("calibration", {})) == variants[name].with_mean


def test_a_smaller_factor_is_measured_up_to_its_own_length():
    trials = extension.reported_trials("mini", ("yarn-4", "yarn"), (0,))
    lengths = {it.config.factor: it.evaluation.lengths for it in trials}
    assert lengths == {4: (256, 1024), 16: (256, 1024, 4096)}


def test_settings_are_chosen_with_other_seeds_and_text():
    chosen = EXPERIMENTS["extension-choice"].trials()
    reported = EXPERIMENTS["extension"].trials()
    assert not {it.config.seed for it in chosen} & {it.config.seed for it in reported}
    [skip] = {it.evaluation.skip for it in chosen}
    [counted] = {it.evaluation.tokens for it in reported}
    assert skip >= counted
    # Trainings of both would be in the same folder if seeds were added.
    assert not extension.VARIANTS.keys() & extension.CHOICES.keys()


def test_no_two_records_have_the_same_name():
    names = [trial.name for experiment in STUDY for trial in EXPERIMENTS[experiment].trials()]
    assert len(names) == len(set(names))


def test_recommended_extensions_and_their_rivals_are_measured_throughout():
    assert extension.RECOMMENDED.keys() == extension.FAMILIES.keys()
    for share in extension.SHARES:
        for family in extension.FAMILIES:
            variant = extension.VARIANTS[extension.recommended(family, share)]
            assert share in variant.shares and family in variant.families
            assert variant.calibrated and variant.compared
    assert {*extension.RECOMMENDED.values()} <= {*extension.WITH_STRINGS}
    needles = {(it.config.family, it.config.variant) for it in extension.needle_trials()}
    assert extension.RECOMMENDED_TUNED.items() <= needles
    for rivals in (extension.WITH_STRINGS, extension.WITH_NEEDLES):
        assert rivals.count("yarn") == 1
