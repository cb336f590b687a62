"""Metadata, changelog and workflows of a release agree with each other."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PYTHONS = ["3.11", "3.12", "3.13"]
FOR_DEVELOPERS = {"test", "lint", "docs", "dev"}


def workflow(name):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_supported_pythons_are_tested_with_the_command_of_the_readme():
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    classified = [it.rpartition(" ")[2] for it in PROJECT["classifiers"] if "Python :: 3." in it]
    assert classified == PYTHONS
    job = workflow("test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make test"]
    assert "\nmake test " in (ROOT / "README.md").read_text()


def test_only_tags_publish_what_was_built_and_checked():
    jobs = workflow("release.yml")["jobs"]
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}
    for name in jobs["publish"]["needs"]:
        assert any(step.get("run", "").startswith("make dist ") for step in jobs[name]["steps"])


def test_the_files_of_a_release_are_those_that_models_are_downloaded_from(tmp_path):
    from scale_invariant_attention.model import pretrained_models
    from scale_invariant_attention.model.pretrained import release_file

    command = ["make", "--silent", "release-files", f"RELEASE={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    expected = {
        release_file(model.name, file): record.bytes
        for model in pretrained_models().values()
        for file, record in model.files.items()
    }
    copied = (tmp_path / "files").iterdir()
    assert {path.name: path.stat().st_size for path in copied} == expected
    steps = workflow("release.yml")["jobs"]["publish"]["steps"]
    assert any("make release-files" in step.get("run", "") for step in steps)


def test_every_extra_for_users_is_described():
    described = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "install.md").read_text(), re.M)
    names = {name for cell in described for name in re.findall("`(.+?)`", cell)}
    assert names == PROJECT["optional-dependencies"].keys() - FOR_DEVELOPERS


def test_changelog_keeps_the_usual_form():
    unreleased, *released = re.findall(r"^## (.+)$", CHANGELOG, re.M)
    assert unreleased == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", it) for it in released)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.M)) <= kinds


def test_version_is_in_one_place():
    version = f'"{PROJECT["version"]}"'
    files = [ROOT / "setup.py", ROOT / "CITATION.cff", *(ROOT / "src").rglob("*.py")]
    assert not [file.name for file in files if version in file.read_text()]
    assert "version: " not in (ROOT / "CITATION.cff").read_text().replace("cff-version: ", "")
