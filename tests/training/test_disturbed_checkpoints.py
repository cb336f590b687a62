"""Saves that are killed, run out of disk or are disturbed cost no checkpoint."""

import errno
import io
import itertools
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from small_checkpoints import every_file, is_whole, save, steps

from scale_invariant_attention.files import FolderInUseError, _durable, locked, manifest
from scale_invariant_attention.training import checkpoints
from scale_invariant_attention.training.checkpoints import (
    CheckpointNotSavedError,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
)

KILLED = Path(__file__).parents[1] / "support" / "killed_checkpoints.py"


def test_leftovers_of_killed_saves_are_cleared_and_nothing_else(tmp_path):
    for name in (".step-00000001-0123456789abcdef", ".step-00000001-mine", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    save(tmp_path, 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".step-00000001-mine", "notes", "step-00000001"}
    assert latest_checkpoint(tmp_path).step == 1


def failing(monkeypatch, owner, call, number):
    """Let the n-th call of a function find the disk full; return a list that records it."""
    original, count = getattr(owner, call), itertools.count(1)
    reached = []

    def fail(*arguments, **keywords):
        if next(count) == number:
            reached.append(True)
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, call, fail)
    return reached


@pytest.mark.parametrize(
    "call", ["mkdir", "fsync", "rename", "unlink", "rmdir", "stat", "io.open", "open"]
)
def test_a_disk_that_fills_up_at_any_call_costs_no_checkpoint(tmp_path, monkeypatch, call):
    owner = io if call == "io.open" else os
    outcomes = set()
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        for step in (1, 2):
            save(folder, step)
        with monkeypatch.context() as patches:
            reached = failing(patches, owner, call.removeprefix("io."), number)
            try:
                save(folder, 3)
                failed = False
            except CheckpointNotSavedError as error:
                failed = True
                assert error.errno == errno.ENOSPC
                assert "step 3 was not saved" in str(error)
                assert "No space left on device" in str(error)
                assert "the last saved checkpoint is" in str(error)
        if not reached:
            assert not failed
            break
        outcomes.add(failed)
        hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        latest = latest_checkpoint(folder)
        assert is_whole(latest)
        assert all(found.damage is None for found in find_checkpoints(folder))
        if failed:
            assert not hidden, number
            assert {1, 2} <= set(steps(folder))
        else:
            assert latest.step == 3
        save(folder, 4)
        assert steps(folder) == [4, 3] if latest.step == 3 else [4, 2]
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert number > 1
    # What happens while old ones are removed costs the new one nothing.
    assert outcomes == {"unlink": {False}, "rmdir": {False}}.get(call, outcomes)
    assert True in outcomes or call in ("unlink", "rmdir")


def test_files_that_cannot_be_finished_cost_no_checkpoint(tmp_path):
    save(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in every_file(tmp_path / "step-00000001"))
    for limit in range(0, largest, 211):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(CheckpointNotSavedError, match="was not saved"):
                save(tmp_path, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
        assert is_whole(latest_checkpoint(tmp_path))
    save(tmp_path, 2)
    assert latest_checkpoint(tmp_path).step == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointNotSavedError, match="there is no earlier checkpoint") as caught:
        save(tmp_path / "file", 1)
    assert str(tmp_path / "file") in str(caught.value)
    with pytest.raises(CheckpointNotSavedError):
        save(tmp_path / "file" / "below", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_is_named(tmp_path):
    save(tmp_path, 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointNotSavedError, match="Permission denied"):
            save(tmp_path, 2)
        assert is_whole(latest_checkpoint(tmp_path))
    finally:
        tmp_path.chmod(0o700)


def test_an_interrupt_leaves_no_temporaries(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(_durable, "_sync_tree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    tmp_path = tmp_path / "checkpoints"
    save(tmp_path, 1)
    fsync, rename, synced, events = os.fsync, os.rename, [], []

    def watched_fsync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def watched_rename(old, new):
        inodes = [path.stat().st_ino for path in (old, *old.iterdir())]
        events.append((Path(new).name, set(inodes) <= set(synced)))
        rename(old, new)
        synced.clear()

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    save(tmp_path, 2)
    assert events == [("step-00000002", True)]
    assert synced == [tmp_path.stat().st_ino]


def test_the_name_of_a_new_folder_is_brought_to_the_disk(tmp_path, monkeypatch):
    fsync, synced = os.fsync, []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (synced.append(os.fstat(descriptor).st_ino), fsync(descriptor)),
    )
    save(tmp_path / "checkpoints", 1)
    assert synced[0] == tmp_path.stat().st_ino


def test_saving_waits_for_readers_and_reading_for_savers(tmp_path, monkeypatch):
    save(tmp_path, 1)
    seen = []

    def locked_by_others(folder, exclusive):
        try:
            with locked(folder, exclusive=exclusive, wait=False):
                return False
        except FolderInUseError:
            return True

    write, read = checkpoints.write_new_file, manifest.damage_of

    def watched_write(*arguments):
        seen.append(("write", locked_by_others(tmp_path, False)))
        return write(*arguments)

    def watched_read(*arguments, **keywords):
        found = locked_by_others(tmp_path, True), locked_by_others(tmp_path, False)
        seen.append(("read", *found))
        return read(*arguments, **keywords)

    monkeypatch.setattr(checkpoints, "write_new_file", watched_write)
    save(tmp_path, 2)
    monkeypatch.setattr(manifest, "damage_of", watched_read)
    latest_checkpoint(tmp_path)
    load_checkpoint(tmp_path / "step-00000001")
    find_checkpoints(tmp_path)
    assert set(seen) == {("write", True), ("read", True, False)}


def survive(folder, kills):
    run = subprocess.run(
        [sys.executable, KILLED, folder, str(kills)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    finished, interrupted = map(int, re.findall(r"^(\d+) saves finished, (\d+) of", run.stdout)[0])
    assert finished > 0
    return interrupted


def test_kills_at_random_moments_cost_no_checkpoint(tmp_path):
    assert survive(tmp_path, 30) > 0


@pytest.mark.slow
def test_many_kills_at_random_moments_cost_no_checkpoint(tmp_path):
    assert survive(tmp_path, 500) > 50
