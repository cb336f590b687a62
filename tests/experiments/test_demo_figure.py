import sys

import pytest

from scale_invariant_attention.experiments.demo import decade_masses, recent_shares
from scale_invariant_attention.experiments.demo_figure import draw


@pytest.fixture(scope="module")
def findings():
    return recent_shares((200, 800), samples=8), decade_masses()


def test_the_figure_is_a_picture(findings, tmp_path):
    path = tmp_path / "figure.png"
    draw(*findings, path)
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_without_matplotlib_the_error_names_the_extra(findings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[plots\]"):
        draw(*findings, tmp_path / "figure.png")
    assert not any(tmp_path.iterdir())
