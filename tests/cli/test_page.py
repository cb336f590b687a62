import pytest

from scale_invariant_attention.cli.page import Page

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
