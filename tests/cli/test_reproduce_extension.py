"""`sia reproduce` of converted models: trained, converted, recorded, and printed."""

import json

import pytest
from tiny_conversions import LENGTH, shrunk
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.lab.experiments import extension


def sia(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def small(monkeypatch):
    """The same commands with models of one layer: what differs is the size alone."""
    whole = extension._trials
    monkeypatch.setattr(extension, "_trials", lambda *given: [shrunk(it) for it in whole(*given)])


def test_table4_trains_records_and_prints(small, tmp_path):
    words = ("reproduce", "table4", "--schemes", "rope,alibi", "--results", tmp_path / "results")
    words += ("--seeds", "1")
    done = sia(*words, "--runs", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert "extension-llama-alibi-10-seed-0: " in done.stderr and "(2 of 2)" in done.stderr
    record = json.loads((tmp_path / "results" / "extension-llama-alibi-10-seed-0.json").read_text())
    _, table, _ = done.stdout.split("\n\n")
    header, rope, alibi = table.splitlines()
    assert header.split() == ["scheme", str(LENGTH), str(4 * LENGTH)]
    assert rope.startswith("llama rope, 0% ")
    assert done.stdout.splitlines()[-1] == f"Records: {tmp_path / 'results'}."
    assert alibi.split()[-2:] == [f"{row['loss']:.3f}" for row in record["losses"]]
    # Again, and as part of the larger study: nothing is trained, the rows are the same.
    assert sia(*words, "--runs", tmp_path / "gone").stdout == done.stdout
    study = ("reproduce", "extension", "--candidates", "rope", "--families", "llama", *words[4:])
    rows = [row.split() for row in sia(*study, "--runs", tmp_path / "runs").stdout.splitlines()]
    assert rope.split() in rows
    assert not (tmp_path / "gone").exists()


def test_strings_are_measured_in_the_families_that_are_named(small, tmp_path):
    words = ("--candidates", "rope", "--families", "gpt_neox", "--seeds", "1")
    done = sia(
        *("reproduce", "extension-strings", *words),
        *("--results", tmp_path / "results", "--runs", tmp_path / "runs"),
    )
    assert done.exit_code == 0, done.output
    [record] = (tmp_path / "results").iterdir()
    assert record.name == "extension-strings-gpt_neox-rope-0-seed-0.json"
    share = json.loads(record.read_text())["strings"][0]
    assert f"{share['found'] / share['count']:.3f}" in done.stdout


def test_a_damaged_record_of_an_extension_is_named(tmp_path):
    path = tmp_path / "extension-llama-rope-0-seed-0.json"
    path.write_text("{}")
    for given in (tmp_path, path):
        done = sia("report", given, "-o", tmp_path / "report")
        assert done.exit_code == 1
        assert f"{path} is not a record" in done.stderr


def test_interrupted_it_says_how_to_resume(small, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "scale_invariant_attention.lab.experiments.conversions.continue_pretraining", interrupted
    )
    done = sia("reproduce", "table4", "--results", tmp_path / "a", "--runs", tmp_path / "b")
    assert done.exit_code == 130
    assert "Interrupted, with 0 of 30 recorded" in done.stderr


def test_configurations_are_printed_and_nothing_is_done(tmp_path):
    done = sia("reproduce", "table4", "--print-config", "--seeds", "2", "--results", tmp_path)
    configs = json.loads(done.stdout)
    assert len(configs) == 20
    assert configs["extension-llama-yarn-10-seed-1"]["factor"] == 16
    assert configs["extension-llama-rope-0-seed-0"]["continued"] is None
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table4", "--schemes", "ropes"), "did you mean 'rope'"),
        (("table4", "--schemes", "scale-invariant-rope"), "there is no scheme"),
        (("table4", "--scale", "paper"), "the scale mini alone"),
        (("table4", "--seeds", "0"), "seeds"),
        (("extension", "--families", "lama"), "did you mean 'llama'"),
        (("extension-needles", "--candidates", "yarm"), "did you mean 'yarn'"),
    ],
)
def test_bad_words_are_refused(words, said):
    done = sia("reproduce", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
