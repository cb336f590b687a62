"""REPRODUCTION.md, the README and the gallery agree with the records of the repository."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app

ROOT = Path(__file__).parents[3]


def test_the_leaderboard_of_the_repository_agrees_with_its_records(tmp_path):
    page = tmp_path / "page.md"
    words = ["reproduce", "leaderboard-page", "--results", str(ROOT / "results" / "leaderboard")]
    done = CliRunner().invoke(app, [*words, "--output", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text() == (ROOT / "docs" / "leaderboard.md").read_text()


def test_the_page_of_images_agrees_with_its_records(tmp_path):
    page = tmp_path / "page.md"
    words = ["reproduce", "images-page", "--results", str(ROOT / "results")]
    done = CliRunner().invoke(app, [*words, "--output", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text() == (ROOT / "docs" / "images.md").read_text()


def test_the_page_of_the_repository_agrees_with_its_records(tmp_path):
    pytest.importorskip(
        "transformers", reason="the trials of extensions are described in its terms"
    )
    results = ROOT / "results"
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    words = ["reproduce", "page", "--results", results, "--figures", tmp_path / "docs"]
    gallery = tmp_path / "docs" / "gallery.md"
    words += ["--readme", readme, "--gallery", gallery]
    done = CliRunner().invoke(app, [*map(str, words), "--output", str(tmp_path / "page.md")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.md").read_text() == (ROOT / "REPRODUCTION.md").read_text()
    assert readme.read_text() == (ROOT / "README.md").read_text()
    assert gallery.read_text() == (ROOT / "docs" / "gallery.md").read_text()
    drawn = {it.name: it.read_text() for it in (tmp_path / "docs" / "gallery").iterdir()}
    assert drawn == {it.name: it.read_text() for it in (ROOT / "docs" / "gallery").iterdir()}
    for figure in (tmp_path / "docs").glob("*.png"):
        assert (ROOT / "docs" / figure.name).exists()
