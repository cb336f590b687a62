"""`sia pretrained`, and commands that take the names of pretrained models."""

import json

import pytest
from tiny_pretrained import NAME, NEEDLES, tiny_miniature, tiny_needles, write_pretrained
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.model import pretrained


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_pretrained(folder, tiny_miniature(), tiny_needles())
    return folder


@pytest.fixture
def work(written, tmp_path, monkeypatch):
    """An empty folder to work in, on a machine that has the models."""
    monkeypatch.setattr(pretrained, "LIST", written / "pretrained.json")
    monkeypatch.setenv("SIA_PRETRAINED", str(written / "pretrained"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sia(*words):
    return CliRunner().invoke(app, words)


def test_the_list_shows_what_was_measured_and_where_models_are(written, work):
    done = sia("pretrained")
    assert done.exit_code == 0, done.output
    listed = json.loads((written / "pretrained.json").read_text())
    for entry in listed:
        values = [f"{value:.3f}" for value in entry["by_length"].values()]
        [line] = [it.split() for it in done.stdout.splitlines() if it.startswith(entry["name"])]
        assert line[:4] == [entry["name"], "rope", *values]
    assert f"In {written / 'pretrained'}: {NAME}, {NEEDLES}" in done.stdout


def test_the_list_fits_80_columns(work, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tables = sia("pretrained").stdout.splitlines()[:-2]
    assert max(len(line.rstrip()) for line in tables) <= 80


def test_the_list_as_json(written, work, monkeypatch):
    entries = json.loads(sia("pretrained", "--json").stdout)
    assert [it["name"] for it in entries] == [NAME, NEEDLES]
    assert entries[0]["folder"] == str(written / "pretrained" / NAME)
    assert entries[0]["bytes"] == sum(it["bytes"] for it in entries[0]["files"].values())
    done = sia("pretrained", "--from", str(work), "--json")
    assert [it["folder"] for it in json.loads(done.stdout)] == [None, None]
    assert f"Not found: {NAME}" in sia("pretrained", "--from", str(work)).stdout
    monkeypatch.setattr(pretrained, "cache_folder", lambda: work)
    address = "https://example.org/files"
    listed = sia("pretrained", "--from", address).stdout
    assert f"Downloaded on first use, from {address}: {NAME}" in listed


def test_a_name_shows_its_card(written, work):
    done = sia("pretrained", NAME)
    assert done.exit_code == 0, done.output
    assert (written / "pretrained" / NAME / "README.md").read_text() in done.stdout
    assert f"Verified, in {written / 'pretrained' / NAME}" in done.stdout


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (
            ("evaluate", NAME, "--lengths", "32", "--tokens", "64"),
            f"{NAME}/evaluation/evaluation.json",
        ),
        (
            ("diagnose", NAME, "--lengths", "64", "--contexts", "1"),
            f"{NAME}/diagnosis/diagnosis.json",
        ),
        # One needle of seven digits, as in its training, not the three of the paper.
        (
            ("needle", NEEDLES, "--lengths", "128", "--examples", "1"),
            f"{NEEDLES}/needles/needles.json",
        ),
    ],
    ids=lambda it: it[0] if isinstance(it, tuple) else "",
)
def test_commands_take_names_and_leave_the_model_as_it_is(written, work, words, result):
    before = sorted(written.rglob("*"))
    done = sia(*words)
    assert done.exit_code == 0, done.output
    assert (work / "runs" / result).exists()
    assert sorted(written.rglob("*")) == before


def test_text_is_generated_by_name(work):
    done = sia("generate", NAME, "--prompt", "def ", "--max-new-tokens", "4", "--seed", "0")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("def ")
    assert not list(work.iterdir())


def test_a_report_shows_their_records(written, work):
    assert sia("report", NAME, "-o", "one").exit_code == 0
    assert NAME in (work / "one" / "index.html").read_text()
    done = sia("report", str(written / "pretrained"), "-o", "all")
    assert done.exit_code == 0, done.output
    page = (work / "all" / "index.html").read_text()
    assert NAME in page and NEEDLES in page


def test_an_unknown_name_is_an_error_with_a_suggestion(work):
    done = sia("generate", "sia-mini-ropes")
    assert done.exit_code == 1
    assert f"did you mean '{NAME}'?" in done.stderr


def test_a_missing_model_is_an_error_that_names_the_fix(work, monkeypatch):
    monkeypatch.setenv("SIA_PRETRAINED", str(work))
    done = sia("evaluate", NAME)
    assert done.exit_code == 1
    assert "set SIA_PRETRAINED to its path" in done.stderr


def test_packaging_refuses_unknown_models(work):
    done = sia("reproduce", "pretrained", "--models", "sia-mini-rop")
    assert done.exit_code == 2
    assert "did you mean 'sia-mini-rope'?" in " ".join(done.output.split())
