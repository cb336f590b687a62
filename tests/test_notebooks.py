"""The notebooks run from top to bottom, need nothing but Python, and are stored without outputs."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@each_notebook
def test_stored_without_outputs_and_linked(path):
    assert all(not it["outputs"] and it["execution_count"] is None for it in code_cells(path))
    # Plain Python, which the test below can run without a kernel.
    for cell in code_cells(path):
        compile("".join(cell["source"]), path.name, "exec")
    assert f"notebooks/{path.name}" in (ROOT / "docs" / "first-steps.md").read_text()


@pytest.mark.slow
@each_notebook
def test_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    if "transformers" in path.read_text():
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("agg")
    drawn = []
    monkeypatch.setattr(pyplot, "show", lambda: (drawn.append(pyplot.gcf()), pyplot.close("all")))
    names = {"__name__": "__main__"}
    for cell in code_cells(path):
        exec(compile("".join(cell["source"]), path.name, "exec"), names)  # noqa: S102
    assert drawn
