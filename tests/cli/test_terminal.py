from itertools import count

import pytest
from rich.progress import BarColumn, TimeRemainingColumn

from scale_invariant_attention.cli.terminal import (
    Page,
    chart,
    progress_bar,
    progress_bars,
    seconds_between_lines,
)

REASON = "it needs a compiler, a driver and a little patience; " * 4 + "so it waits"


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_a_pipe_gets_every_row_on_one_line(capsys):
    Page().table(("backend", "reason"), [("flex", REASON)])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["backend", "reason"]
    assert row.split(maxsplit=1) == ["flex", REASON]


def test_a_terminal_wraps_and_loses_no_word(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    Page().table(("backend", "reason"), [("flex", REASON)])
    _, first, *rest = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in (first, *rest))
    assert " ".join([first, *rest]).split() == ["flex", *REASON.split()]


def test_paragraphs_wrap_and_paths_do_not(capsys):
    path = "folder/" * 20
    page = Page()
    page.paragraph("word " * 40)
    page.line(path)
    *prose, last = capsys.readouterr().out.splitlines()
    assert len(prose) > 1
    assert last == path


def test_brackets_are_text(capsys):
    page = Page()
    page.line("pip install package[plots]")
    page.facts([("remedy", "[bold]none[/bold] :smile:")])
    assert capsys.readouterr().out.split() == [
        *("pip", "install", "package[plots]"),
        *("remedy", "[bold]none[/bold]", ":smile:"),
    ]


def cells(lines, **options):
    """The drawing without the axes, as rows of characters."""
    drawn = chart(lines, labels_at=(), **options)
    return [row[8:] for row in drawn[:-2]]


def test_ends_are_in_the_corners():
    rows = cells({"a": [(1, 0.0), (100, 1.0)]}, width=11, height=5)
    assert rows[0].endswith("a") and len(rows[0]) == 11
    assert rows[-1].startswith("a")


def test_halfway_on_the_logarithmic_axis_is_halfway_up():
    rows = cells({"a": [(1, 0.0), (10_000, 2.0)]}, width=21, height=5)
    assert rows[2][10] == "a"


def test_later_lines_are_drawn_over_earlier_ones_and_over_the_mark():
    flat = [(1, 1.0), (16, 1.0)]
    rows = cells({"a": flat, "b": flat, "c": [(1, 0.0), (2, 0.0)]}, marked=4, width=5, height=2)
    assert rows[0] == "bbbbb"
    assert rows[1][2] == ":"


def test_a_line_ends_where_its_points_end():
    rows = cells({"a": [(1, 0.0), (16, 1.0)], "b": [(4, 0.5), (16, 0.5)]}, width=9, height=3)
    assert "".join(rows).count("b") == 5
    assert "b" not in rows[1][:4]


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_a_flat_line_does_not_divide_by_zero(value):
    rows = cells({"a": [(1, value), (8, value)]}, width=8, height=3)
    assert "".join(rows).count("a") == 8


def test_labels_stand_under_their_columns_and_none_is_cut():
    drawn = chart({"a": [(1, 0.0), (4096, 1.0)]}, labels_at=(1, 64, 4096), width=25)
    labels = drawn[-1]
    assert labels[8] == "1" and labels[8 + 12 : 8 + 14] == "64" and labels.endswith("4,096")
    assert len(labels) <= 8 + 25


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys):
    times = count()
    columns = ("documents", BarColumn(), TimeRemainingColumn())
    with progress_bars(*columns, get_time=lambda: float(next(times))) as bar:
        task = bar.add_task("", total=100)
        for done in range(1, 101):
            bar.update(task, completed=done)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) < 60
    assert all("% documents" in line for line in lines)
    assert lines[-1].endswith(" left")


def test_quick_work_prints_no_progress(capsys):
    with progress_bar("documents", 2) as show:
        show(1)
        show(2)
    assert capsys.readouterr().err == ""


def test_logs_of_days_stay_readable():
    elapsed, lines = 0.0, 0
    while elapsed < 86_400:
        elapsed += seconds_between_lines(elapsed)
        lines += 1
    assert lines < 1500
