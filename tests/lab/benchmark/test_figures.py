import sys

import pytest

from scale_invariant_attention.lab.benchmark import grid
from scale_invariant_attention.lab.benchmark.problem import Problem
from scale_invariant_attention.lab.benchmark.report import draw
from scale_invariant_attention.provenance import provenance


@pytest.fixture
def rows(bounds):
    """A function that makes rows of some passes, with a rival of no known name among them."""

    def make(*passes):
        return [
            grid.timing(Problem(2, 8, length, name), rival, [0.3, 0.1, 0.2], [0.1] * 3, bounds, 1)
            for name in passes
            for length in (1024, 1500)
            for rival in ("sdpa", "cpu", "newcomer")
        ]

    return make


@pytest.mark.parametrize(
    ("passes", "names"),
    [
        (["forward", "forward+backward"], ["benchmark-ratio.png", "benchmark-peak.png"]),
        (["decode"], ["benchmark-decode.png"]),
    ],
)
def test_there_is_a_picture_of_what_was_measured(rows, tmp_path, passes, names):
    paths = draw(provenance(), rows(*passes), tmp_path / "new folder")
    assert [path.name for path in paths] == names
    assert sorted(paths) == sorted((tmp_path / "new folder").iterdir())
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_without_matplotlib_the_error_names_the_extra(rows, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[plots\]"):
        draw(provenance(), rows("forward"), tmp_path)
    assert not any(tmp_path.iterdir())
