import errno
import os
import subprocess
import sys

import pytest

from scale_invariant_attention.files import FolderInUseError, UnlockedFolderWarning, locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks there")


def test_one_at_a_time_may_change_a_folder(tmp_path):
    with locked(tmp_path):
        for exclusive in (True, False):
            with (
                pytest.raises(FolderInUseError, match=str(tmp_path)),
                locked(tmp_path, exclusive=exclusive, wait=False),
            ):
                pass
    with locked(tmp_path, wait=False):
        pass


def test_many_may_read_but_none_change_meanwhile(tmp_path):
    with (
        locked(tmp_path, exclusive=False),
        locked(tmp_path, exclusive=False, wait=False),
        pytest.raises(FolderInUseError),
        locked(tmp_path, wait=False),
    ):
        pass


HOLDS_IT = """
import signal, sys
from pathlib import Path
from scale_invariant_attention.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


def test_a_killed_process_holds_no_lock(tmp_path):
    command = [sys.executable, "-c", HOLDS_IT, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FolderInUseError), locked(tmp_path, wait=False):
            pass
        other.kill()
        other.wait()
    with locked(tmp_path, wait=False):
        pass


def test_a_copy_of_the_descriptor_holds_no_lock(tmp_path, monkeypatch):
    opened, copies = os.open, []

    def copying(*arguments):
        descriptor = opened(*arguments)
        copies.append(os.dup(descriptor))
        return descriptor

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", copying)
        with locked(tmp_path):
            pass
    with locked(tmp_path, wait=False):
        pass
    os.close(copies[0])


def test_an_error_inside_is_no_error_of_the_lock(tmp_path):
    with pytest.raises(BlockingIOError), locked(tmp_path, wait=False):
        raise BlockingIOError(11, "inside")
    with locked(tmp_path, wait=False):
        pass


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_system_that_refuses_locks_is_named(tmp_path, monkeypatch, wait):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    entered = False
    with (
        pytest.warns(
            UnlockedFolderWarning, match=r"the file system cannot lock folders \(No locks"
        ),
        locked(tmp_path, wait=wait),
    ):
        entered = True
    assert entered
