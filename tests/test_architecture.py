"""Imports go one way, importing is light, and no file is a catch-all."""

import ast
import re
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
    "attention": {"theory", "files"},
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


def imported_modules(file):
    """Dotted paths below the package of everything that a file imports: modules, and names in them."""
    package = file.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            elif base[0] == PACKAGE.name:
                base = base[1:]
            else:
                continue
            yield from ((*base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            paths = (tuple(alias.name.split(".")) for alias in node.names)
            yield from (path[1:] for path in paths if path[0] == PACKAGE.name)


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir()))
def test_imports_go_one_way(folder):
    if folder == "__pycache__":
        return
    assert folder in ALLOWED, f"add the packages that {folder} may import to ALLOWED"
    for file in (PACKAGE / folder).rglob("*.py"):
        packages = {path[0] for path in imported_modules(file)} & ALLOWED.keys()
        assert packages <= ALLOWED[folder] | {folder}, file


def test_underscored_modules_are_private_to_their_package():
    for file in PACKAGE.rglob("*.py"):
        package = file.relative_to(PACKAGE).parts[:-1]
        for path in imported_modules(file):
            for depth, name in enumerate(path):
                is_module = (PACKAGE.joinpath(*path[: depth + 1])).with_suffix(".py").exists()
                if is_module and name.startswith("_") and not name.startswith("__"):
                    assert path[:depth] == package[:depth], f"{file} imports {'.'.join(path)}"


def test_the_package_stays_small():
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) <= 252
    longest = max(files, key=lambda file: len(file.read_text().splitlines()))
    assert len(longest.read_text().splitlines()) <= 420, f"{longest} probably has two jobs"


def test_the_map_is_complete_and_correct():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in set(re.findall(r"`([\w./]+\.(?:py|cpp|h|js|md|json))`", page)):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), (
            f"docs/architecture.md: there is no {name}"
        )
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" and not path.name.startswith("_"):
            assert path.stem in page, f"{path.name} is not on the map"
        elif (path / "__init__.py").exists():
            assert f"{path.name}/" in page, f"{path.name}/ is not on the map"


def test_importing_needs_torch_and_nothing_heavy():
    script = (
        "import sys, scale_invariant_attention; "
        "heavy = {'triton', 'transformers', 'matplotlib', 'datasets', 'typer', 'rich', 'tensorboard', "
        "'sklearn', 'skimage'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_file_is_a_catch_all():
    catch_alls = {"utils", "util", "common", "helpers", "helper", "misc"}
    files = [f for f in ROOT.rglob("*.py") if ".venv" not in f.parts]
    assert not [file for file in files if file.stem in catch_alls]
