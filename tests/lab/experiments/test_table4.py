"""Table 4: conversions are measured, recorded once, and resumed."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_conversions import LENGTH, tiny

from scale_invariant_attention import huggingface
from scale_invariant_attention.data import SameTokens, Windows, standard_library
from scale_invariant_attention.lab.experiments import table4
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.table4 import conversion_trials
from scale_invariant_attention.lab.experiments.trials import DifferentRecordError, find_record
from scale_invariant_attention.lab.reporting import paper

OURS = "scale-invariant-p-rope"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table4")
    run_in_turn(tiny("rope", "rope-ntk", "logn-ntk", OURS), folder / "runs", folder / "results")
    return folder


def losses(folder, name):
    record = json.loads((folder / "results" / f"table4-{name}-seed-0.json").read_text())
    return {row["length"]: row["loss"] for row in record["losses"]}


def test_the_schemes_are_those_of_the_paper():
    assert set(table4.SCHEMES) == set(paper.TABLE4)
    assert table4.NOT_CONTINUED == paper.NOT_CONTINUED


@pytest.mark.parametrize("scheme", ["rope", "rope-ntk"])
def test_a_model_that_is_not_fine_tuned_has_the_loss_of_the_first_model(folder, scheme):
    [trial] = tiny(scheme)
    same = SameTokens(standard_library("validation"), trial.evaluation.lengths, at_most=8 * LENGTH)
    for length, recorded_loss in losses(folder, scheme).items():
        # Another model for each length, so that NTK has no longer text to remember.
        model = huggingface.convert(trial.first_model(folder / "runs"), scheme)
        total = 0.0
        for inputs, targets in same.batches(length, batch_size=100):
            with torch.no_grad():
                logits = model(inputs).logits.double().log_softmax(-1)
            total -= logits.gather(-1, targets.unsqueeze(-1)).sum().item()
        assert recorded_loss == pytest.approx(total / same.count, rel=1e-5)
    assert losses(folder, "rope")[LENGTH] == losses(folder, "rope-ntk")[LENGTH]


def test_every_way_of_ours_is_recorded_and_training_matters(folder):
    ways = ("", "-calibrated", "-untrained", "-calibrated-untrained")
    found = [losses(folder, OURS + way)[LENGTH] for way in ways]
    assert len(set(found)) == 4
    assert found[0] < found[2] and found[1] < found[3]


def test_a_calibrated_model_knows_the_spread_of_its_scores(folder):
    trial = next(it for it in tiny(OURS) if it.config.calibrated)
    model = trial.convert(trial.first_model(folder / "runs"))
    assert model.config.scale_invariant_attention["options"] == {"base": 16.0, "tau": 10.0}
    sigma = model.model.layers[0].self_attn.position_scheme.distance.value("sigma", None)
    plain = huggingface.convert(trial.first_model(folder / "runs"), "p-rope", base=16.0)
    rows = Windows(
        standard_library("train"), length=LENGTH, batch_size=16, order="shuffled", seed=0
    )
    measured = huggingface.measure_scores(plain, [rows[0][0]])
    assert sigma.tolist() == pytest.approx(measured.spread[0].tolist())


def test_recorded_trials_are_not_run_again(folder):
    done = []
    trials = tiny("rope", OURS)
    run_in_turn(
        trials, folder / "nowhere", folder / "results", done=lambda trial, _: done.append(trial)
    )
    assert done == trials
    assert not (folder / "nowhere").exists()


def test_the_first_training_is_shared_and_resumed(folder, tmp_path):
    class StoppedHereError(Exception):
        pass

    def interrupt(trial, now):
        if now.step == 3:
            raise StoppedHereError

    [trial] = tiny("rope")
    with pytest.raises(StoppedHereError):
        run_in_turn([trial], tmp_path / "runs", tmp_path / "results", watch=interrupt)
    steps = []
    run_in_turn(
        [trial],
        tmp_path / "runs",
        tmp_path / "results",
        watch=lambda trial, now: steps.append((now.step, now.steps)),
    )
    assert steps == [(3, 4), (4, 4)]
    assert losses(tmp_path, "rope") == losses(folder, "rope")


def test_a_record_of_another_trial_is_never_overwritten(folder):
    [trial] = tiny("rope")
    first = replace(trial.config.first, learning_rate=1.0)
    other = replace(trial, config=replace(trial.config, first=first))
    with pytest.raises(DifferentRecordError, match=r"config.first.learning_rate is 0.003 there"):
        find_record(other, folder / "results")


def test_a_file_that_is_no_record_is_named(tmp_path):
    [trial] = tiny("rope")
    (tmp_path / f"{trial.name}.json").write_text("{}")
    with pytest.raises(ValueError, match=r"table4-rope-seed-0.json is not a record"):
        find_record(trial, tmp_path)


def test_a_record_has_all_of_it(folder):
    record = json.loads((folder / "results" / "table4-logn-ntk-seed-0.json").read_text())
    assert record["config"]["continued"]["length"] == LENGTH
    assert record["trained_as"] == "table4-logn-ntk-seed-0"
    assert len(record["training"]["loss"]) == len(record["training"]["gradient_norm"]) == 2
    assert record["seconds"] >= 0
    assert {"commit", "torch", "transformers"} <= record["provenance"].keys()


def test_a_scheme_that_the_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match="Table 4 has no scheme 'scale-invariant-rope'"):
        conversion_trials("mini", ("scale-invariant-rope",))


def test_transformers_yarn_has_a_fixed_factor():
    [trial] = conversion_trials("mini", ("yarn",))
    assert trial.config.scheme_options == {"factor": 16.0}
