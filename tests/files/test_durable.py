import errno
import hashlib
import os

import pytest

from scale_invariant_attention.files import _durable
from scale_invariant_attention.files._durable import (
    FileRecord,
    clear_partial,
    finish_growing,
    growing_path,
    remove_folder,
    replace_file,
    sync_folder,
    write_folder,
    write_new_file,
)
from scale_invariant_attention.files.manifest import damage_of


def test_a_new_file_is_recorded_as_it_is(tmp_path):
    record = write_new_file(tmp_path / "file", [b"one", memoryview(b"two")])
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    assert record == FileRecord(6, hashlib.sha256(b"onetwo").hexdigest())
    assert damage_of(tmp_path / "file", record, "list") is None


def test_a_new_file_replaces_no_other(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    with pytest.raises(FileExistsError):
        write_new_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"here"


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

    monkeypatch.setattr(_durable.os, "fsync", fail)
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_only_leftovers_of_killed_replacements_are_cleared(tmp_path, monkeypatch):
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
    clear_partial(tmp_path, "a.json")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_replacement_may_come_in_pieces(tmp_path):
    replace_file(tmp_path / "file", b"one", memoryview(b"two"))
    assert (tmp_path / "file").read_bytes() == b"onetwo"


def test_a_growing_file_is_seen_when_it_is_finished(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    growing_path(path).write_bytes(b"new")
    assert path.read_bytes() == b"old"
    finish_growing(path)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_folder_appears_when_it_is_whole(tmp_path, old):
    path = tmp_path / "folder"
    if old:
        path.mkdir()
        (path / "file").write_bytes(old)
    with write_folder(path) as partial:
        (partial / "below").mkdir()
        (partial / "below" / "file").write_bytes(b"new")
        assert path.exists() == bool(old)
    assert list(tmp_path.iterdir()) == [path]
    assert [file.name for file in path.iterdir()] == ["below"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_the_old_one(tmp_path, error):
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(error), write_folder(path) as partial:
        (partial / "file").write_bytes(b"new")
        raise error
    assert list(tmp_path.iterdir()) == [path]
    assert not list(path.iterdir())


def test_a_folder_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (events.append(os.fstat(descriptor).st_ino), fsync(descriptor)),
    )
    monkeypatch.setattr(os, "rename", lambda *paths: (events.append("rename"), rename(*paths)))
    path = tmp_path / "folder"
    with write_folder(path) as partial:
        (partial / "below").mkdir()
        (partial / "below" / "file").write_bytes(b"new")
    order = [path / "below" / "file", path / "below", path]
    inodes = [each.stat().st_ino for each in order]
    assert events == [*inodes, "rename", tmp_path.stat().st_ino]


def test_leftover_folders_are_cleared_unless_they_are_being_written(tmp_path):
    left = tmp_path / (".step-7-" + "0" * 16)
    left.mkdir()
    (left / "file").touch()
    other = tmp_path / ".step-7-mine"
    other.mkdir()
    with write_folder(tmp_path / "step-8") as partial:
        clear_partial(tmp_path, "step-*")
        assert sorted(tmp_path.iterdir()) == sorted([other, partial])


def test_a_folder_that_cannot_be_removed_at_once_is_not_seen(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").touch()

    def fail(*_, **__):
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patches:
        patches.setattr(os, "unlink", fail)
        with pytest.raises(OSError, match="denied"):
            remove_folder(path)
    assert not path.exists()
    clear_partial(tmp_path, "folder")
    assert not list(tmp_path.iterdir())
