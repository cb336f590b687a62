"""`sia figures`: every figure from records and theory, and messages about missing records."""

import json

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.lab.experiments import theory_numbers
from scale_invariant_attention.lab.reporting.gallery import TheoryNumbers
from scale_invariant_attention.theory import Plain, ScaleInvariantTransform


@pytest.fixture(autouse=True)
def quick_theory(monkeypatch):
    """Few samples of few points."""
    few = {"ratios": (2,), "starts": (10, 20, 40), "samples": 4}
    numbers = TheoryNumbers(
        against_length=theory_numbers.against_length((256, 1024), samples=4),
        transformed=theory_numbers.range_entropies(ScaleInvariantTransform(), **few),
        plain=theory_numbers.range_entropies(Plain(), **few),
        transform=theory_numbers.transform_tables((10.0,)),
        samples=4,
    )
    monkeypatch.setattr(TheoryNumbers, "computed", lambda: numbers)


def run(*words):
    return CliRunner().invoke(app, ["figures", *map(str, words)])


def test_without_records_the_theory_is_drawn_and_the_commands_are_named(tmp_path):
    done = run("-o", tmp_path / "out", "--results", tmp_path / "none", "--formats", "svg")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "figure-2-range-entropy.svg",
        "figure-6-plain-range-entropy.svg",
        "transform.svg",
    ]
    expected = "Figure 5: tau: not drawn, its records are missing; make them with sia reproduce tau"
    assert expected in done.stdout
    assert done.stdout.count("not drawn") == 5
    assert "  Delta 2: " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--formats", "png,pdf"), "--formats must be some of png, svg, got 'pdf'"),
        (("--formats", "svg", "--page", "page.md"), "--formats must include png for --page"),
    ],
)
def test_errors_that_users_can_fix(words, message, tmp_path):
    done = run("-o", tmp_path, *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_record_of_something_else_is_told(tmp_path):
    (tmp_path / "mini-500").mkdir()
    (tmp_path / "mini-500" / "rope-seed-0.json").write_text(json.dumps({"config": {}}))
    done = run("-o", tmp_path, "--results", tmp_path)
    assert done.exit_code == 1
    assert "is not a record" in done.stderr
