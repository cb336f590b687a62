import errno
import os
import shutil

import pytest

from scale_invariant_attention.files import check_writable


def test_a_good_folder_is_made_and_left_empty(tmp_path):
    check_writable(tmp_path / "new" / "folder", 1000)
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_too_little_room_is_reported_with_both_amounts(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_writable(tmp_path, 1_500_000)
    with pytest.raises(OSError, match=r"has 1\.5 MB free, but 2\.0 GB are needed") as caught:
        check_writable(tmp_path, 2 * 10**9)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("call", ["mkdir", "fsync"])
def test_an_unwritable_folder_is_reported_and_left_clean(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="cannot be written to: Read-only") as caught:
        check_writable(tmp_path / "new" if call == "mkdir" else tmp_path, 0)
    assert caught.value.errno == errno.EROFS
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        OSError, match="file cannot be written to: it is a file; give another folder"
    ):
        check_writable(tmp_path / "file")
