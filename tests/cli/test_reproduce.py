"""`sia reproduce`: trains, records, and prints what is recorded."""

import json

from tiny_training import tiny_config
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.experiments import table1
from scale_invariant_attention.experiments.trials import Evaluation, Trial


def test_table1_prints_means_and_errors_of_what_it_records(tmp_path, monkeypatch):
    def tiny_trials(names, seeds):
        assert names == ("rope",)
        return [
            Trial(
                f"rope-{seed}",
                tiny_config(scheme="rope", steps=2, seed=seed),
                Evaluation((32, 64), 256),
            )
            for seed in seeds
        ]

    monkeypatch.setattr(table1, "mini_trials", tiny_trials)
    folders = ("--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    options = ("--schemes", "rope", "--seeds", "2", "--workers", "1")
    done = CliRunner().invoke(app, ["reproduce", "table1", *options, *folders])
    assert done.exit_code == 0, done.output
    losses = [
        json.loads((tmp_path / "results" / f"rope-{seed}.json").read_text())["losses"][1]["loss"]
        for seed in (0, 1)
    ]
    mean, error = sum(losses) / 2, abs(losses[0] - losses[1]) / 2
    assert f"{mean:.4f} +/- {error:.4f}" in done.stdout
    assert "rope-1: " in done.stderr


def test_an_unknown_scheme_is_refused_with_the_nearest():
    done = CliRunner().invoke(app, ["reproduce", "table1", "--schemes", "ropes"])
    assert done.exit_code == 2
    assert "did you mean 'rope'" in done.output
