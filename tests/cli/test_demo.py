"""`sia demo`: trains, shows the results, and claims nothing beyond them."""

import json
import sys

import pytest
from tiny_training import tiny_config
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.cli import demo as command
from scale_invariant_attention.lab.experiments import recall
from scale_invariant_attention.lab.experiments.demo import SCHEMES, decade_masses
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.experiments.trials import TrainingTrial

LENGTHS = (32, 128, 512)
RECALLED_AT = (64, 256)


def tiny_trials():
    return [
        TrainingTrial(
            f"{scheme}-seed-0", tiny_config(scheme=scheme, steps=2), LossEvaluation(LENGTHS, 1024)
        )
        for scheme in SCHEMES
    ]


def tiny_recall_trials():
    changes = {"steps": 2, "growth_steps": 1, "layers": 1, "width": 16, "batch_size": 2}
    evaluation = {"lengths": RECALLED_AT, "examples": 4}
    return recall.recall_trials("mini", SCHEMES, (0,), changes, evaluation)


def make_small(monkeypatch):
    monkeypatch.setattr(command, "demo_loss_trials", tiny_trials)
    monkeypatch.setattr(command, "demo_recall_trials", tiny_recall_trials)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


def demo(output):
    return CliRunner().invoke(app, ["demo", "--output", str(output)])


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A demo that has run, and its folder."""
    folder = tmp_path_factory.mktemp("demo") / "a folder [1]"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return demo(folder), folder


def test_the_table_is_what_was_recorded(shown):
    run, folder = shown
    assert run.exit_code == 0, run.output
    for scheme in SCHEMES:
        record = json.loads((folder / "records" / f"{scheme}-seed-0.json").read_text())
        losses = [row["loss"] for row in record["losses"]]
        cells = [f"{loss:.3f}" for loss in losses] + [f"{losses[-1] - losses[0]:+.3f}"]
        assert any(
            [word for word in line.split() if word in cells] == cells
            for line in run.output.splitlines()
        ), scheme


def test_the_transform_is_explained_with_its_masses(shown):
    run, _ = shown
    assert "sqrt(1 + 2 log(1 + t/tau)) S - 2 log(1 + t/tau)" in run.output
    for mass in decade_masses().masses["scale-invariant"]:
        assert f"{mass:.2f}" in run.output


def test_losses_by_position_are_drawn_twice(shown):
    run, folder = shown
    picture = (folder / "loss-by-position.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert f"As a figure: {folder / 'loss-by-position.png'}" in run.output
    drawing = [line for line in run.output.splitlines() if line[7:8] == "|"]
    assert len(drawing) == 16
    assert {"R", "A", "S"} & set("".join(line[8:] for line in drawing))


def test_a_web_page_has_what_was_recorded(shown):
    run, folder = shown
    assert f"    {folder / 'index.html'}\n" in run.output
    text = (folder / "index.html").read_text()
    for scheme in SCHEMES:
        record = json.loads((folder / "records" / f"{scheme}-seed-0.json").read_text())
        assert all(f"{row['loss']:.3f}" in text for row in record["losses"])
        record = json.loads((folder / "records" / f"recall-{scheme}-seed-0.json").read_text())
        assert all(f"{row['found'] / row['count']:.3f}" in text for row in record["recall"])


def test_what_was_recalled_is_what_was_recorded(shown):
    run, folder = shown
    for scheme in SCHEMES:
        record = json.loads((folder / "records" / f"recall-{scheme}-seed-0.json").read_text())
        cells = [f"{row['found'] / row['count']:.3f}" for row in record["recall"]]
        assert len(cells) == len(RECALLED_AT)
        assert any(line.split()[-2:] == cells for line in run.output.splitlines()), scheme


def test_learned_and_lost_recall_are_distinguished():
    recalled = {
        "rope": {64: 0.95, 1024: 0.1},
        "alibi": {64: 0.4, 1024: 0.1},
        "scale-invariant-p-rope": {64: 0.99, 1024: 0.94},
    }
    rope, alibi, ours = command._recall_findings(recalled, 64, 1024)
    assert rope == "RoPE learns the task, and only recalls 10% at 16 times the training length."
    assert alibi.startswith("ALiBi learns 40% of it, and only recalls")
    assert "still recalls 94%" in ours


def test_a_second_demo_shows_the_same_without_training(shown, monkeypatch):
    run, folder = shown
    monkeypatch.setattr("scale_invariant_attention.lab.experiments.running.Worker", None)
    assert demo(folder).stdout == run.stdout


def test_without_matplotlib_only_the_figure_is_missing(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = demo(shown[1])
    assert run.exit_code == 0
    assert 'pip install "scale-invariant-attention[plots]"' in run.output


def findings(rope, alibi, ours):
    losses = {"rope": rope, "alibi": alibi, "scale-invariant-p-rope": ours}
    by_length = {name: dict(zip((256, 4096), pair, strict=True)) for name, pair in losses.items()}
    return " ".join(command._findings(by_length, 256, 4096))


def test_a_rival_that_is_ahead_is_reported():
    said = findings(rope=(1.5, 3.0), alibi=(1.5, 1.4), ours=(1.5, 1.45))
    assert "16 times the training length, RoPE loses 1.500 nats" in said
    assert "scale-invariant p-RoPE gains 0.050 nats" in said
    assert "ALiBi holds up too, and is 0.050 ahead" in said


def test_a_level_rival_is_level_a_worse_one_behind_and_a_broken_one_is_not_mentioned():
    assert "is level on loss" in findings((1.5, 3.0), (1.5, 1.5), (1.5, 1.5))
    assert "ALiBi holds up too, 0.100 behind" in findings((1.5, 3.0), (1.5, 1.5), (1.4, 1.4))
    assert "ALiBi" not in findings((1.5, 3.0), (1.5, 1.7), (1.5, 1.5))


def test_an_unchanged_loss_is_reported():
    assert "RoPE does not change (+0.004)" in findings((1.5, 1.504), (1.5, 1.7), (1.5, 2.0))


@pytest.mark.parametrize("below", ["", "below"])
def test_an_output_that_cannot_be_a_folder_is_refused_at_once(tmp_path, below):
    file = tmp_path / "taken"
    file.touch()
    run = demo(file / below)
    assert run.exit_code == 1
    assert str(file) in run.output and "folder" in run.output
    assert "The idea" not in run.output
