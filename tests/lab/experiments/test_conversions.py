"""Conversions: trained once, converted, fine-tuned, measured, recorded once, and resumed."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from tiny_conversions import LENGTH, shrunk

from scale_invariant_attention import huggingface
from scale_invariant_attention.data import SameTokens, Windows, standard_library
from scale_invariant_attention.evaluation.task_scores import score_task
from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.experiments.conversions import (
    JoinedOptimisers,
    muon_and_adam,
)
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import DifferentRecordError, find_record
from scale_invariant_attention.lab.reporting import paper
from scale_invariant_attention.training import Muon

STRINGS, NEEDLES = extension.string_trials, extension.needle_trials


def tiny(*schemes):
    """Trials of Table 4."""
    return [shrunk(it) for it in extension.table4_trials("mini", schemes, (0,))]


def tiny_of(build, *names):
    return [shrunk(it) for it in build("mini", names, (0,), families=("llama",))]


@pytest.fixture(scope="module")
def trials():
    table4 = tiny("rope", "rope-ntk", "logn-ntk", "yarn")
    return [
        *table4,
        *tiny_of(STRINGS, "rope", "ntk-by-length"),
        *tiny_of(NEEDLES, "yarn", extension.RECOMMENDED_TUNED["llama"]),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trials):
    folder = tmp_path_factory.mktemp("conversions")
    run_in_turn(trials, folder / "runs", folder / "results")
    return folder


def recorded(folder, name):
    return json.loads((folder / "results" / f"extension-{name}-seed-0.json").read_text())


def losses(folder, name):
    return {row["length"]: row["loss"] for row in recorded(folder, name)["losses"]}


def test_the_schemes_of_table4_are_those_of_the_paper():
    assert set(extension.TABLE4) == set(paper.TABLE4)
    untrained = [scheme for scheme, (_, share) in extension.TABLE4.items() if not share]
    assert tuple(untrained) == paper.NOT_CONTINUED
    for scheme, (variant, _) in extension.TABLE4.items():
        known = extension.VARIANTS[variant]
        assert known.scheme == scheme or (known.scheme, known.rotary) in (
            ("rope", "dynamic"),
            ("rope", "yarn"),
        )
    reported = {it.name: it for it in extension.reported_trials()}
    assert all(reported[it.name] == it for it in extension.table4_trials())


@pytest.mark.parametrize("scheme", ["rope", "rope-ntk"])
def test_a_model_that_is_not_fine_tuned_has_the_loss_of_the_first_model(folder, scheme):
    [trial] = tiny(scheme)
    found = losses(folder, trial.config.name.removesuffix("-seed-0"))
    same = SameTokens(standard_library("validation"), trial.evaluation.lengths, at_most=8 * LENGTH)
    for length, recorded_loss in found.items():
        # Another model for each length, so that NTK has no longer text to remember.
        model = huggingface.convert(trial.first_model(folder / "runs"), scheme)
        total = 0.0
        for inputs, targets in same.batches(length, batch_size=100):
            with torch.no_grad():
                logits = model(inputs).logits.double().log_softmax(-1)
            total -= logits.gather(-1, targets.unsqueeze(-1)).sum().item()
        assert recorded_loss == pytest.approx(total / same.count, rel=1e-5)
    assert losses(folder, "llama-rope-0")[LENGTH] == losses(folder, "llama-ntk-by-length-0")[LENGTH]


def test_a_calibrated_model_knows_the_spread_of_its_scores(folder):
    trial = next(
        shrunk(it)
        for it in extension.reported_trials("mini", ("transform-slow",), (0,))
        if it.config.family == "llama"
    )
    model = trial.converted(trial.first_model(folder / "runs"))
    tau = trial.config.scheme_options["tau"]
    assert model.config.scale_invariant_attention["options"]["tau"] == tau
    sigma = model.model.layers[0].self_attn.position_scheme.distance.value("sigma", None)
    plain = huggingface.convert(
        trial.first_model(folder / "runs"), "rope", rotary="slow", factor=16
    )
    rows = Windows(
        standard_library("train"), length=LENGTH, batch_size=16, order="shuffled", seed=0
    )
    measured = huggingface.measure_scores(plain, [rows[0][0]])
    assert sigma.tolist() == pytest.approx(measured.spread[0].tolist())


def test_repeated_strings_are_scored_with_the_model_as_converted(folder):
    [trial] = tiny_of(STRINGS, "rope")
    model = trial.first_model(folder / "runs").eval()
    task = trial.evaluation._task(trial.config)
    rows = recorded(folder, "strings-llama-rope-0")["strings"]
    for row in rows:
        expected = score_task(lambda tokens: model(tokens).logits, task, row["length"], 3)
        assert (row["found"], row["count"]) == (expected.answers.hits, expected.answers.count)
        assert row["loss"] == pytest.approx(expected.loss, rel=1e-5)
    ntk = recorded(folder, "strings-llama-ntk-by-length-0")["strings"]
    assert ntk[0]["loss"] == rows[0]["loss"] and ntk[1]["loss"] != rows[1]["loss"]


def test_needles_start_from_the_fine_tuned_model(folder):
    record = recorded(folder, "needles-llama-yarn-10")
    assert record["trained_as"] == "extension-needles-llama-yarn-10-seed-0"
    assert [row["length"] for row in record["needles"]["lengths"]] == [80, 160]
    assert len(record["training"]["loss"]) == 2
    # The model of Table 4's row is the start, and was not trained again.
    [start] = tiny("yarn")
    [trial] = tiny_of(NEEDLES, "yarn")
    assert list(trial.training_steps)[:2] == list(start.training_steps)
    recipe = json.loads((folder / "runs" / trial.name / "recipe.json").read_text())
    assert recipe["model"] == huggingface.continued_pretraining.fingerprint(
        start.train(folder / "runs")
    )


def test_every_training_is_done_once(folder, trials):
    """Logged once each, whatever is measured of it, and nothing besides."""
    wanted = {name for trial in trials for name in trial.training_steps}
    assert {path.name for path in (folder / "runs").iterdir()} == wanted
    assert sum(name.endswith("first-seed-0") for name in wanted) == 1
    before = {name: (folder / "runs" / name / "training.json").stat() for name in wanted}
    for trial in trials:
        trial.train(folder / "runs")
    after = {name: (folder / "runs" / name / "training.json").stat() for name in wanted}
    assert {n: it.st_mtime_ns for n, it in before.items()} == {
        n: it.st_mtime_ns for n, it in after.items()
    }


def test_recorded_trials_are_not_run_again(folder, trials):
    done = []
    run_in_turn(
        trials, folder / "nowhere", folder / "results", done=lambda trial, _: done.append(trial)
    )
    assert done == trials
    assert not (folder / "nowhere").exists()


def test_muon_trains_the_matrices_of_the_layers_and_adam_the_rest():
    for family in extension.FAMILIES:
        [trial] = extension.reported_trials("mini", ("ntk-by-length",), (0,), families=(family,))
        model = shrunk(trial).new_model()
        muon, adam = muon_and_adam(model, 0.02, trial.config.first).parts
        names = {id(weight): name for name, weight in model.named_parameters()}
        matrices, others = (
            [names[id(weight)] for group in part.param_groups for weight in group["params"]]
            for part in (muon, adam)
        )
        assert len({*matrices, *others}) == len(matrices) + len(others) == len(names)
        assert all("layers.0." in name for name in matrices) and len(matrices) >= 4
        assert sum("emb" in name or "head" in name for name in others) == 2


def test_joined_optimisers_share_rates_and_keep_their_states():
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2)]

    def joined():
        return JoinedOptimisers(Muon(weights[:1], 0.1), torch.optim.AdamW(weights[1:], 0.2))

    def step(optimiser):
        for weight in weights:
            weight.grad = torch.ones(4, 4)
        optimiser.step()

    one = joined()
    step(one)
    held = copy.deepcopy(one.state_dict()), [weight.detach().clone() for weight in weights]
    step(one)
    expected = [weight.detach().clone() for weight in weights]
    other = joined()
    other.load_state_dict(held[0])
    for weight, before in zip(weights, held[1], strict=True):
        weight.data.copy_(before)
    step(other)
    assert all(torch.equal(*pair) for pair in zip(weights, expected, strict=True))
    # A schedule that stops both stops every weight, also after loading.
    for group in other.param_groups:
        group["lr"] = 0.0
    step(other)
    assert all(torch.equal(*pair) for pair in zip(weights, expected, strict=True))


def test_the_first_training_is_resumed(folder, tmp_path):
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
    assert losses(tmp_path, "llama-rope-0") == losses(folder, "llama-rope-0")


def test_a_record_of_another_trial_is_never_overwritten(folder):
    [trial] = tiny("rope")
    first = replace(trial.config.first, learning_rate=1.0)
    other = replace(trial, config=replace(trial.config, first=first))
    with pytest.raises(DifferentRecordError, match=r"config.first.learning_rate is 0.003 there"):
        find_record(other, folder / "results")


def test_a_file_that_is_no_record_is_named(tmp_path):
    [trial] = tiny("rope")
    (tmp_path / f"{trial.name}.json").write_text("{}")
    with pytest.raises(ValueError, match=r"extension-llama-rope-0-seed-0.json is not a record"):
        find_record(trial, tmp_path)


def test_a_record_has_all_of_it(folder):
    record = recorded(folder, "llama-logn-ntk-10")
    assert record["config"]["continued"]["length"] == LENGTH
    assert record["trained_as"] == "extension-llama-logn-ntk-10-seed-0"
    assert len(record["training"]["loss"]) == len(record["training"]["gradient_norm"]) == 2
    assert record["seconds"] >= 0
    assert {"commit", "torch", "transformers"} <= record["provenance"].keys()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no scheme 'scale-invariant-rope'"):
        extension.table4_trials("mini", ("scale-invariant-rope",))
    with pytest.raises(ValueError, match=r"no candidate 'yarm'.*did you mean 'yarn'"):
        extension.reported_trials("mini", ("yarm",))
    with pytest.raises(ValueError, match=r"no family 'lama'.*did you mean 'llama'"):
        extension.reported_trials("mini", families=("lama",))
