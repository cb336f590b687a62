"""Imports go one way, importing is light, and no file is a catch-all."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scale_invariant_attention"

# Which of the other packages each package may import. Top-level modules are free to all.
LIBRARY = {
    *("theory", "files", "attention", "schemes", "model", "data", "evaluation", "training"),
    "analysis",
}
ALLOWED = {
    "theory": set(),
    "files": set(),
    "attention": {"theory"},
    "schemes": {"theory", "attention"},
    "model": {"theory", "files", "attention", "schemes"},
    "data": {"files"},
    "evaluation": {"theory", "data", "model"},
    "analysis": {"theory", "attention", "schemes", "model"},
    "training": LIBRARY - {"training", "analysis"},
    "huggingface": LIBRARY - {"training"},
    "lab": LIBRARY | {"huggingface"},
    "cli": LIBRARY | {"huggingface", "lab"},
}


def imported_folders(file):
    """The folders of the package that a file imports from."""
    folder = file.relative_to(PACKAGE).parts[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level >= 2:
            names = [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
            parts = node.module.split(".")[1:]
            names = parts[:1] or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [
                a.name.split(".")[1] for a in node.names if a.name.startswith(f"{PACKAGE.name}.")
            ]
        else:
            continue
        yield from (name for name in names if name in ALLOWED and name != folder)


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir()))
def test_imports_go_one_way(folder):
    if folder == "__pycache__":
        return
    assert folder in ALLOWED, f"add the packages that {folder} may import to ALLOWED"
    for file in (PACKAGE / folder).rglob("*.py"):
        assert set(imported_folders(file)) <= ALLOWED[folder], file


def test_importing_needs_torch_and_nothing_heavy():
    script = (
        "import sys, scale_invariant_attention; "
        "heavy = {'triton', 'transformers', 'matplotlib', 'datasets', 'typer', 'rich', 'tensorboard'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_file_is_a_catch_all():
    catch_alls = {"utils", "util", "common", "helpers", "helper", "misc"}
    files = [f for f in ROOT.rglob("*.py") if ".venv" not in f.parts]
    assert not [file for file in files if file.stem in catch_alls]
