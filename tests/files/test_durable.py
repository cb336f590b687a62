import errno
import hashlib
import os

import pytest

from scale_invariant_attention.files import durable
from scale_invariant_attention.files.durable import (
    FileRecord,
    clear_partial_files,
    damage_of,
    replace_file,
    sync_folder,
    write_new_file,
)


def test_a_new_file_is_recorded_as_it_is(tmp_path):
    record = write_new_file(tmp_path / "file", [b"one", memoryview(b"two")])
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    assert record == FileRecord(6, hashlib.sha256(b"onetwo").hexdigest())
    assert damage_of(tmp_path / "file", record, "list") is None


def test_a_new_file_replaces_none(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    with pytest.raises(FileExistsError):
        write_new_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"here"


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"twoone", "corrupt"),
        (b"onetw", "truncated"),
        (b"onetwo3", "added"),
        (None, "missing"),
    ],
)
def test_damage_names_the_file(tmp_path, content, damage):
    path = tmp_path / "file"
    record = write_new_file(path, [b"onetwo"])
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = damage_of(path, record, "list")
    assert damage in found
    assert str(path) in found
    assert "list" in found


def test_a_quick_look_reads_no_contents(tmp_path):
    path = tmp_path / "file"
    record = write_new_file(path, [b"onetwo"])
    path.write_bytes(b"twoone")
    assert damage_of(path, record, "list", contents=False) is None
    path.write_bytes(b"two")
    assert "truncated" in damage_of(path, record, "list", contents=False)


def test_a_folder_in_the_place_of_a_file_is_damage(tmp_path):
    assert "missing" in damage_of(tmp_path, FileRecord(0, ""), "list")


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_failed_replacement_changes_nothing(tmp_path, monkeypatch, call, old):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([old] if old else [])


def test_a_replacement_is_synced_file_first_and_name_last(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (events.append(os.fstat(descriptor).st_ino), fsync(descriptor)),
    )
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("replace"), replace(*paths)))
    path = tmp_path / "file"
    replace_file(path, b"new")
    assert events == [path.stat().st_ino, "replace", tmp_path.stat().st_ino]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_systems_that_cannot_sync_folders_are_excused(tmp_path, monkeypatch, code):
    def fail(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durable.os, "fsync", fail)
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_only_what_a_killed_replacement_left_is_cleared(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    with monkeypatch.context() as patches:
        patches.setattr(os, "replace", lambda *_: None)  # as if killed before
        replace_file(path, b"new")
    (partial,) = tmp_path.iterdir()
    kept = [
        tmp_path / name
        for name in ("a.json", ".a.json-mine", f"{partial.name}0", ".axjson-0" + "0" * 15)
    ]
    for file in kept:
        file.touch()
    clear_partial_files(path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
