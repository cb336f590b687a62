import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from terminals import printed_on_a_terminal, sia_on_a_terminal
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.cli.printable import printable
from scale_invariant_attention.cli.terminal import Page

# Sets the title of the window, clears the screen (in 7 and in 8 bits), and reverses what follows.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202eabc\r\x7f"
OBEYED = ("\x1b]0", "\x1b[2J", "\x07", "\x9b", "\u202e", "\x7f")
NAME = "x" + HOSTILE


def assert_harmless(text):
    assert [obeyed for obeyed in OBEYED if obeyed in text] == []
    assert "]0;owned" in text.replace("\r\n", ""), "the rest of the name is shown"


@pytest.fixture
def hostile_folder(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "fineweb_train_000001.bin").write_bytes(b"no shard")
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "Zürich\t→ 中文\n",
        "\u0646\u0631\u0645\u200c\u0627\u0641\u0632\u0627\u0631",
        "\N{FAMILY}\u200d\N{GIRL}",
        "e\u0301",
    ],
    ids=["western", "persian", "emoji", "combining"],
)
def test_ordinary_text_is_left_alone(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    "character",
    [
        *map(chr, {*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A}),
        *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\udc9b",
    ],
    ids=lambda character: f"U+{ord(character):04X}",
)
def test_each_control_is_replaced(character):
    assert printable(f"a{character}b") == "a\ufffdb"


def test_tables_stay_aligned_and_lose_nothing(capsys):
    page = Page()
    page.table((HOSTILE, "n"), [("short", "1"), (NAME, "2")])
    page.facts([(NAME, NAME)])
    page.heading(NAME)
    page.paragraph(NAME)
    page.line(NAME)
    printed = capsys.readouterr().out
    assert_harmless(printed)
    header, first, second, *_ = printed.splitlines()
    assert printable(NAME) in second
    assert header.rstrip().index("n", len(HOSTILE)) == first.index("1") == second.rindex("2")


@pytest.mark.parametrize("command", [("data", "check"), ("data", "show"), ("evaluate",)])
def test_names_of_folders(command, hostile_folder):
    assert_harmless(sia_on_a_terminal(*command, hostile_folder))


@pytest.mark.parametrize("command", [("data", "check"), ("data", "show"), ("evaluate",)])
def test_names_of_folders_in_a_pipe(command, hostile_folder):
    assert_harmless(CliRunner().invoke(app, [*command, str(hostile_folder)]).output)


def test_a_name_that_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"x\x9b2J")
    folder.mkdir()
    (folder / "y.bin").write_bytes(b"no shard")
    printed = printed_on_a_terminal(
        *("-m", "scale_invariant_attention.cli", "data", "check"),
        folder,
        # Python then writes such bytes as they were.
        PYTHONIOENCODING="utf-8:surrogateescape",
    )
    assert b"WRONG" in printed
    assert b"\x9b" not in printed


@pytest.mark.parametrize(
    "words", [(NAME,), ("train", f"--{NAME}"), ("train", "--scheme", NAME), ("report", NAME)]
)
def test_refused_arguments(words):
    printed = sia_on_a_terminal(*words)
    assert "Error" in printed
    assert [obeyed for obeyed in OBEYED if obeyed in printed] == []


def test_contents_of_files(tmp_path):
    (tmp_path / "config.json").write_text(f'{{"scheme": "{NAME}"}}')
    printed = sia_on_a_terminal("generate", tmp_path)
    assert "Error" in printed
    assert [obeyed for obeyed in OBEYED if obeyed in printed] == []


def test_replies_of_a_server(tmp_path):
    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(f"HTTP/1.0 404 {HOSTILE[:-2]}\r\n\r\n".encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        printed = sia_on_a_terminal(
            *("data", "fetch", "fineweb10B", "--shards", "0", "-o", tmp_path / "out"),
            *("--base-url", f"http://127.0.0.1:{server.server_port}"),
        )
        server.shutdown()
    assert_harmless(printed)


PROGRAM = """
import sys, warnings
from scale_invariant_attention.cli import commands
from scale_invariant_attention.cli.terminal import progress_bars

def doctor():
    for place in ("inside", "outside"):
        warnings.warn(f"{place} {hostile}")
    with progress_bars("{task.description}") as bars:
        bars.add_task(f"bar {hostile}", total=1)
        bars.console.print(f"above {hostile}")
        warnings.warn(f"during {hostile}")
        print(f"printed {hostile}")
    sys.stderr.write("\\rother bar")
    raise RuntimeError(f"bug {hostile}")

from scale_invariant_attention.cli import doctor as module
module.doctor = doctor
hostile, sys.argv[1:] = sys.argv[1], ["doctor"]
commands.main()
"""


def test_bars_warnings_and_tracebacks():
    printed = printed_on_a_terminal("-c", PROGRAM, NAME).decode()
    for place in ("inside", "outside", "bar", "above", "during", "printed", "bug"):
        assert f"{place} x\ufffd]0;owned" in printed
    assert_harmless(printed)
    assert "\rother bar" in printed
