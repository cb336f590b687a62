"""docs/figures.md and its figures agree with the records."""

from pathlib import Path

from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.lab.reporting.gallery import FORMATS

ROOT = Path(__file__).parents[3]


def test_the_figures_of_the_repository_agree_with_its_records(tmp_path, monkeypatch):
    # Rendering takes as long as all the rest, and other tests cover it.
    monkeypatch.setitem(FORMATS, "png", lambda figure: b"")
    results, docs = ROOT / "results", tmp_path / "docs"
    words = ["figures", "--results", results, "-o", docs / "figures", "--formats", "png"]
    done = CliRunner().invoke(app, [*map(str, words), "--page", str(docs / "figures.md")])
    assert done.exit_code == 0, done.output
    assert (docs / "figures.md").read_text() == (ROOT / "docs" / "figures.md").read_text()
    made = {path.name for path in (docs / "figures").iterdir()}
    assert made == {path.name for path in (ROOT / "docs" / "figures").iterdir()}
