import json
import os
import socket

import pytest

from scale_invariant_attention.files import json_files
from scale_invariant_attention.files.json_files import read_json_object


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config.json"


def test_an_object_comes_back(path):
    held = {"layers": 4, "options": {"tau": 1e-3, "names": ["ä", None, True]}, "huge": 10**300}
    path.write_text(json.dumps(held))
    assert read_json_object(path) == held


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": Infinity}', "must have a finite number as a, got inf"),
        ('{"a": {"b": [0, NaN]}}', r"must have a finite number as a\.b\[1\], got nan"),
        ('{"a": [[-1e999]]}', r"must have a finite number as a\[0\]\[0\], got -inf"),
        ('{"a": ' * 100_000, "is not JSON"),
        ('{"a": ' * 90 + "1" + "}" * 90, r"nested at most 64 deep, got more in a\.a\.a"),
        ('{"a": ' + "[" * 90 + "]" * 90 + "}", r"nested at most 64 deep, got more in a\[0\]\[0\]"),
        ('{"a": 1' + "0" * 10_000 + "}", "is not JSON"),
        ('["a"]', "must hold a JSON object, got list"),
        ("", "is not JSON"),
        ("\0", "is not JSON"),
    ],
)
def test_the_file_and_the_field_are_named(path, text, message):
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_json_object(path)
    assert str(caught.value).startswith(str(path))


def test_numbers_that_are_not_finite_where_they_may_be(path):
    path.write_text('{"loss": [1, NaN]}')
    assert str(read_json_object(path, finite=False)) == "{'loss': [1, nan]}"


def make_folder(path):
    path.mkdir()


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_folder, "a folder"),
        (os.mkfifo, "a pipe"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
    ids=["folder", "pipe", "socket", "device"],
)
def test_what_is_no_file_is_not_read(path, make, kind, monkeypatch):
    # Paths of sockets are short.
    monkeypatch.chdir(path.parent)
    make(path.relative_to(path.parent))
    with pytest.raises(ValueError, match=f"config.json must be a file, got {kind}"):
        read_json_object(path)


def test_a_file_that_would_fill_the_memory_is_not_read(path):
    with path.open("wb") as file:
        file.truncate(json_files.LARGEST_BYTES + 1)
    with pytest.raises(ValueError, match="must have at most 1,073,741,824 bytes, got"):
        read_json_object(path)


def test_a_missing_file(path):
    with pytest.raises(FileNotFoundError):
        read_json_object(path)
