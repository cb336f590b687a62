import os
import sys
from functools import partial

import pytest
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.cli import demo as command
from scale_invariant_attention.experiments.demo import decade_masses, op_run, recent_shares

few_shares = partial(recent_shares, (256, 1024), samples=32)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(command, "recent_shares", few_shares)
    monkeypatch.setattr(command, "op_run", partial(op_run, length=512))


def demo(output):
    return CliRunner().invoke(app, ["demo", "--output", str(output)])


def test_the_numbers_of_the_computation_are_printed(tmp_path):
    run = demo(tmp_path)
    assert run.exit_code == 0
    for shares in few_shares().shares.values():
        for share in shares:
            assert f"{100 * share.mean:#.3g}% +/- " in run.output
    for mass in decade_masses().masses["scale-invariant"]:
        assert f"{mass:.2f}" in run.output
    assert "1 x 4 heads x 512 tokens x 64" in run.output
    assert "cpu" in run.output or "tiled" in run.output
    assert "4 MiB" in run.output


def test_the_last_line_is_the_path_of_a_picture(tmp_path):
    folder = tmp_path / "a rather long name for a folder" / "that does not exist yet" / "[1]"
    run = demo(folder)
    figure = folder / "attention-by-distance.png"
    assert run.output.splitlines()[-1] == str(figure)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_default_folder_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert (tmp_path / "demo-output" / "attention-by-distance.png").stat().st_size > 0


def test_without_matplotlib_all_but_the_figure_is_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = demo(tmp_path)
    assert run.exit_code == 0
    assert 'pip install "scale-invariant-attention[plots]"' in run.output
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("below", "reason"), [("", "is a file"), ("below", "Not a directory")])
def test_an_output_that_cannot_be_a_folder_is_refused_at_once(tmp_path, below, reason):
    file = tmp_path / "taken"
    file.touch()
    run = demo(file / below)
    assert run.exit_code == 2
    for part in ("--output", str(file / below), reason, "name a folder"):
        assert part in run.output


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    run = demo(tmp_path)
    assert run.exit_code == 2
    assert "Permission denied" in run.output
