"""`sia reproduce table4`: a model converted and fine-tuned, recorded, and printed."""

import json

import pytest
from tiny_conversions import LENGTH, shrunk
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.lab.experiments import table4


def sia(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def small(monkeypatch):
    """The same command with models of one layer: what differs is the size alone."""
    whole = table4.conversion_trials
    monkeypatch.setattr(
        table4,
        "conversion_trials",
        lambda *given, **named: [shrunk(it) for it in whole(*given, **named)],
    )


def test_it_trains_records_and_prints(small, tmp_path):
    words = ("reproduce", "table4", "--schemes", "rope,alibi", "--results", tmp_path / "results")
    done = sia(*words, "--runs", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert "table4-alibi-seed-0: " in done.stderr and "(2 of 2)" in done.stderr
    record = json.loads((tmp_path / "results" / "table4-alibi-seed-0.json").read_text())
    header, rope, alibi = done.stdout.splitlines()
    assert header.split() == ["scheme", str(LENGTH), str(4 * LENGTH)]
    assert rope.startswith("rope, not fine-tuned ")
    assert alibi.split() == ["alibi", *(f"{row['loss']:.3f}" for row in record["losses"])]
    # Again: nothing is trained, the table is the same.
    assert sia(*words, "--runs", tmp_path / "gone").stdout == done.stdout
    assert not (tmp_path / "gone").exists()


def test_a_folder_with_such_records_can_be_reported(tmp_path):
    (tmp_path / "table4-rope-seed-0.json").write_text("{}")
    whole = sia("report", tmp_path, "-o", tmp_path / "report")
    assert whole.exit_code == 1 and "no record and no run in it" in whole.stderr
    alone = sia("report", tmp_path / "table4-rope-seed-0.json", "-o", tmp_path / "report")
    assert alone.exit_code == 1 and "a record of Table 4" in alone.stderr


def test_interrupted_it_says_how_to_resume(small, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "scale_invariant_attention.lab.experiments.table4.continue_pretraining", interrupted
    )
    done = sia("reproduce", "table4", "--results", tmp_path / "a", "--runs", tmp_path / "b")
    assert done.exit_code == 130
    assert "Interrupted, with 0 of 13 recorded" in done.stderr


def test_configurations_are_printed_and_nothing_is_done(tmp_path):
    done = sia("reproduce", "table4", "--print-config", "--seeds", "2", "--results", tmp_path)
    configs = json.loads(done.stdout)
    assert len(configs) == 26
    assert configs["table4-yarn-seed-1"]["options"] == {"factor": 16.0}
    assert configs["table4-rope-seed-0"]["continued"] is None
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--schemes", "ropes"), "did you mean 'rope'"),
        (("--schemes", "scale-invariant-rope"), "Table 4 has no scheme"),
        (("--scale", "paper"), "the scale mini alone"),
        (("--seeds", "0"), "seeds"),
    ],
)
def test_bad_words_are_refused(words, said):
    done = sia("reproduce", "table4", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
