"""The study of extensions: every variant converts, is measured as it says, and is recorded once."""

import json
from dataclasses import replace

import pytest
from tiny_conversions import LENGTH, shrunk

from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.experiments.catalogue import EXPERIMENTS
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import find_record


def tiny(trial):
    """The same trial with a one-layer model and short trainings."""
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = {**trial.config.model, **small, "max_position_embeddings": LENGTH}
    if "head_dim" in model:
        model["head_dim"] = 8
    small_trial = shrunk(trial)
    return replace(small_trial, config=replace(small_trial.config, model=model))


def of_variant(*names, seeds=(0,)):
    return [tiny(trial) for trial in extension.reported_trials("mini", names, seeds)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extension")
    trials = of_variant("rope", "yarn-by-length", "transform-slow-beyond")
    tuned = ("llama", "rope", 0.1)
    trials = [
        it
        for it in trials
        if it.config.share == 0 or (it.config.family, it.config.variant, it.config.share) == tuned
    ]
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


def test_fine_tuning_has_a_share_of_the_tokens(folder):
    record = json.loads((folder / "results" / "extension-llama-rope-10-seed-0.json").read_text())
    assert len(record["training"]["loss"]) == 2
    shares = {
        trial.config.share: trial.config.continued and trial.config.continued.tokens
        for trial in extension.reported_trials("mini", ("rope",), (0,))
    }
    first = extension.STEPS * 16 * 256
    assert shares == {0.0: None, 0.01: first // 100, 0.1: first // 10}


def test_recorded_trials_are_found_again(folder):
    for trial in [it for it in of_variant("transform-slow-beyond") if it.config.share == 0]:
        assert find_record(trial, folder / "results").config == trial.config


@pytest.mark.parametrize("variants", [extension.VARIANTS, extension.CHOICES])
def test_every_variant_converts(folder, variants):
    trials = extension.extension_trials(variants, seeds=(0,))
    by_name = {it.config.variant: tiny(it) for it in trials if it.config.family == "llama"}
    assert by_name.keys() == variants.keys()
    first = next(iter(by_name.values())).first_model(folder / "runs")
    for name, trial in by_name.items():
        # Converting starts from the original, whatever the model was converted to before.
        model = trial.convert(first)
        settings = getattr(model.config, "scale_invariant_attention", {})
        assert ("calibration" in settings) == variants[name].calibrated
        assert ("mean" in settings.get("calibration", {})) == variants[name].with_mean


def test_settings_are_chosen_with_other_seeds_and_text():
    chosen = EXPERIMENTS["extension-choice"].trials()
    reported = EXPERIMENTS["extension"].trials()
    assert not {it.config.seed for it in chosen} & {it.config.seed for it in reported}
    [skip] = {it.evaluation.skip for it in chosen}
    [counted] = {it.evaluation.tokens for it in reported}
    assert skip >= counted
    assert len({it.name for it in (*chosen, *reported)}) == len(chosen) + len(reported)


def test_an_unknown_candidate_is_refused():
    with pytest.raises(ValueError, match=r"no candidate 'yarm'.*did you mean 'yarn'"):
        extension.reported_trials("mini", ("yarm",))
