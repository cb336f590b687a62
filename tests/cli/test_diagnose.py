"""`sia diagnose`: the tables, the record and the figure of a model's attention."""

import json
import shutil
import sys
from functools import partial

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.analysis import attention_by_length, diagnose, gpt_scores
from scale_invariant_attention.cli import app
from scale_invariant_attention.data import spread_windows, standard_library
from scale_invariant_attention.model import GPT


def run(*words):
    return CliRunner().invoke(app, ["diagnose", *map(str, words)])


def test_tables_record_and_figure(trained, tmp_path):
    done = run(trained, "--lengths", "1024,64", "--contexts", 2, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    model = GPT.from_pretrained(trained / "model")
    tokens = spread_windows(standard_library("validation"), 1024, 2)
    measured = attention_by_length(partial(gpt_scores, model), tokens, (64, 1024))
    expected = [diagnose(it, scale_invariant=True, qk_norm=True) for it in measured]
    record = json.loads((tmp_path / "diagnosis.json").read_text())
    assert [it["length"] for it in record["diagnosis"]] == [64, 1024]
    assert [it["slope"] for it in record["diagnosis"]] == [it.slope for it in expected]
    assert record["attention"] == [json.loads(json.dumps(it.to_dict())) for it in measured]
    assert record["data"]["fingerprint"] == standard_library("validation").fingerprint()
    assert {"commit", "torch", "cpu"} <= record["provenance"].keys()
    assert (tmp_path / "diagnosis.png").read_bytes().startswith(b"\x89PNG")
    found = [line.split() for line in done.stdout.splitlines() if line.strip()]
    (recent,) = measured[1].overall("recent_share")
    (entropy,) = measured[1].overall("global_entropy")
    slope = f"{expected[1].slope:+.2f}"
    assert ["1,024", slope, f"{entropy.mean:.2f}", f"{recent.mean:.3f}"] in found
    # Of 64 tokens only one range lies beyond the local one: no slope.
    assert len(next(line for line in found if line[0] == "64")) == 3
    (layer,) = expected[1].layers
    row = next(line for line in found if line[0] == "0")
    assert row[1:3] == [f"{layer.score_mean:+.2f}", f"{layer.score_spread:.2f}"]
    for finding, advice in expected[1].advice.items():
        assert finding.capitalize() in done.stdout
        assert advice.split()[0] in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        str(tmp_path / "diagnosis.json"),
        str(tmp_path / "diagnosis.png"),
    ]


def test_other_ranges(trained, tmp_path):
    done = run(trained, "--lengths", 64, "--contexts", 1, "--delta", 4, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "diagnosis.json").read_text())
    assert record["attention"][0]["edges"] == [0, 4, 16, 64]


def test_scores_that_do_not_vary_have_no_kurtosis(trained, tmp_path):
    done = run(trained, "--lengths", 2, "--contexts", 1, "-o", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "nan" not in done.stdout
    results = json.loads((tmp_path / "diagnosis.json").read_text())
    assert all(it["kurtosis"] is None for it in results["diagnosis"][0]["layers"])
    assert results["attention"][0]["layers"][0]["scores"]["kurtosis"][0] is None


def test_defaults_come_from_the_run(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(tmp_path / "run", "--contexts", 1)
    assert done.exit_code == 0, done.output
    assert "No figure: figures need matplotlib" in done.stdout
    record = json.loads((tmp_path / "run" / "diagnosis" / "diagnosis.json").read_text())
    assert [it["length"] for it in record["diagnosis"]] == [32, 64]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lengths", "64,x"), "--lengths must be whole numbers separated by commas"),
        (("--lengths", "1"), "--lengths must be at least 2 each, got '1'"),
        (("--lengths", "99999999"), "--lengths do not fit the data"),
        (
            ("--lengths", "64", "--contexts", "1", "--delta", "1"),
            "--delta must be greater than 1, got 1;",
        ),
        (("--data", "books"), "data must be 'standard-library'"),
    ],
)
def test_user_errors_are_one_sentence(trained, words, message):
    done = run(trained, *words)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]
