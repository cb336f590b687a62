"""`sia needle`: the tables, the record and the heat map of what a model finds."""

import json

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.data import get_encoding, standard_library
from scale_invariant_attention.data.needles import NeedleFormat, NeedleTask
from scale_invariant_attention.evaluation.retrieval import find_needles
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import recipe, train

LENGTHS = (64, 160)
OPTIONS = {"needles": 1, "digits": 1, "cities": ["A"], "sentence": " {city}{number} "}


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """A model that has learnt the form of the answer, so that some needles are found by chance."""
    folder = tmp_path_factory.mktemp("fine-tuned")
    config = recipe(
        "mini",
        **{"layers": 1, "width": 32, "heads": 2, "length": 64, "batch_size": 16, "steps": 60},
        **{"validation_lengths": LENGTHS, "validation_tokens": 160, "validate_every": 0},
        task="needles",
        task_options=OPTIONS,
    )
    train(config, folder)
    return folder


def run(*words):
    return CliRunner().invoke(app, ["needle", *map(str, words)])


def test_tables_record_and_heat_map(fine_tuned, tmp_path):
    done = run(fine_tuned, "--examples", 40, "--depths", 2, "-o", tmp_path)
    assert done.exit_code == 0, done.output
    task = NeedleTask(
        standard_library("validation"), get_encoding("bytes"), NeedleFormat(**OPTIONS), seed=0
    )
    model = GPT.from_pretrained(fine_tuned / "model")
    found = json.loads((tmp_path / "needles.json").read_text())
    assert found["trained_length"] == 64
    assert found["format"]["cities"] == ["A"]
    lines = [line.split() for line in done.stdout.splitlines()]
    total = 0
    for length, row in zip(LENGTHS, found["lengths"], strict=True):
        expected = find_needles(model, task, length, 40)
        hits = sum(result.found for result in expected)
        assert (row["length"], row["found"], row["count"]) == (length, hits, 40)
        assert row["log_probability"] == pytest.approx(
            sum(result.log_probability for result in expected) / 40
        )
        assert [str(length), str(hits), "40", f"{hits / 40:.3f}"] in [line[:4] for line in lines]
        near = [result for result in expected if result.depth < 0.5]
        cell = next(c for c in found["cells"] if (c["length"], c["start"]) == (length, 0))
        assert (cell["found"], cell["count"]) == (sum(it.found for it in near), len(near))
        total += hits
    # Nothing found, or everything, would be no test of counting.
    assert 0 < total < 80
    assert (tmp_path / "needles.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.splitlines()[-2:] == [
        str(tmp_path / "needles.json"),
        str(tmp_path / "needles.png"),
    ]


def test_the_format_can_be_another_and_depths_have_edges(fine_tuned):
    words = ("--options", "needles=1,digits=3", "--depths", "0,10,100", "--examples", 3)
    done = run(fine_tuned, *words, "--lengths", "100")
    assert done.exit_code == 0, done.output
    assert "3 texts at each length, with 1 needle of 3 digits" in done.stdout
    found = json.loads((fine_tuned / "needles" / "needles.json").read_text())
    assert {(cell["start"], cell["stop"]) for cell in found["cells"]} <= {(0, 0.1), (0.1, 1)}
    assert sum(cell["count"] for cell in found["cells"]) == 3


def test_a_saved_model_gets_the_format_of_the_paper(tmp_path):
    GPT(GPTConfig.preset("mini", layers=1)).save_pretrained(tmp_path)
    done = run(tmp_path, "--lengths", "300", "--examples", 1)
    assert done.exit_code == 0, done.output
    assert "3 needles of 7 digits" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lengths", "8"), "length must be at least"),
        (("--lengths", "99999999"), "use a longer haystack or a shorter length"),
        (
            ("--depths", "0,50,20"),
            "--depths must be increasing percentages from 0 to 100, got '0,50,20'",
        ),
        (("--depths", "0"), "--depths must be a whole number of at least 1, got '0'"),
        (("--depths", "ten"), "--depths must be a whole number, or percentages"),
        (("--options", "needle=2"), "did you mean 'needles'"),
        (("--options", "needles"), "--options must be name=value,name=value, got 'needles'"),
    ],
)
def test_user_errors_come_before_anything_runs(fine_tuned, tmp_path, words, message):
    done = run(fine_tuned, *words, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
