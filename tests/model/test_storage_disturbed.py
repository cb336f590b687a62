"""Saves that fail, are killed or collide leave a complete model and nothing else."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import disturbed_saves
import pytest
import torch
from disturbed_saves import unlisted_files, whole_model
from saved_models import CONFIG, weights_files

from scale_invariant_attention.model import storage
from scale_invariant_attention.model.storage import load, save


class Failing:
    """Raises at the n-th call, and counts."""

    def __init__(self, original, number):
        self.original, self.number, self.calls = original, number, 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        if self.calls == self.number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.original(*arguments, **keywords)


def fail_at(patch, step, number):
    """Make the n-th call of a step of saving fail; what counts the calls."""
    if step in ("fsync", "replace"):
        failing = Failing(getattr(os, step), number)
        patch.setattr(os, step, failing)
        return failing
    original_open = Path.open
    failing = Failing(lambda write, piece: write(piece), number)

    def open_failing(path, mode="r", *arguments, **keywords):
        if step == "open" and "x" in mode:
            failing(lambda _: None, None)
        file = original_open(path, mode, *arguments, **keywords)
        return WritesThrough(file, failing) if step == "write" and "x" in mode else file

    patch.setattr(Path, "open", open_failing)
    return failing


class WritesThrough:
    """A file whose writes go through a function."""

    def __init__(self, file, through):
        self.file, self.through = file, through

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, piece):
        return self.through(self.file.write, piece)


@pytest.mark.parametrize("over", ["an old model", "nothing"])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failure_at_any_step_leaves_the_old_model_and_no_partial_files(tmp_path, step, over):
    for number in range(1, 100):
        folder = tmp_path / str(number)
        if over == "an old model":
            disturbed_saves.save(folder, "first")
        with pytest.MonkeyPatch.context() as patch:
            failing = fail_at(patch, step, number)
            try:
                disturbed_saves.save(folder, "second")
            except OSError as error:
                assert error.errno == errno.ENOSPC
            else:
                break
        # The last sync of the folder is after the new model is in place.
        committed = step == "fsync" and (folder / "config.json").exists()
        if over == "an old model":
            name = whole_model(folder)
            assert name == "first" or committed
            assert not unlisted_files(folder)
        elif committed:
            assert whole_model(folder) == "second"
        else:
            assert not folder.exists() or not list(folder.iterdir())
        disturbed_saves.save(folder, "second")
        assert whole_model(folder) == "second" and not unlisted_files(folder)
    # Weights in two files, both lists of weights; pieces of each; config.json.
    assert failing.calls == number - 1 >= {"open": 3, "write": 6, "fsync": 6, "replace": 3}[step]
    assert whole_model(folder) == "second"


def test_an_unreadable_config_does_not_cost_the_weights(folder, monkeypatch):
    """Without config.json it is unknown which weights are in use, so none are removed."""
    original, reads = storage._read_config_file, 0

    def read(path):
        nonlocal reads
        reads += path.name == "config.json"
        if reads > 1 and path.name == "config.json":
            raise OSError(errno.EMFILE, "Too many open files")
        return original(path)

    monkeypatch.setattr(storage, "_read_config_file", read)
    monkeypatch.setattr(os, "replace", Failing(os.replace, 1))
    with pytest.raises(OSError, match="No space"):
        save(folder, {}, {"a": torch.zeros(1)})
    monkeypatch.undo()
    assert load(folder)[0] == CONFIG
    save(folder, {}, {"a": torch.zeros(1)})
    assert not unlisted_files(folder)


def test_old_weights_that_cannot_be_removed_are_removed_by_the_next_save(folder, monkeypatch):
    (old,) = weights_files(folder)
    monkeypatch.setattr(os, "unlink", Failing(os.unlink, 1))
    save(folder, {"new": 1}, {"a": torch.zeros(1)})
    assert load(folder)[0] == {"new": 1} and old.exists()
    monkeypatch.undo()
    save(folder, {"new": 2}, {"a": torch.zeros(2)})
    assert not unlisted_files(folder)


def test_one_file_that_cannot_be_removed_does_not_keep_the_others(folder, monkeypatch):
    stale = {folder / f".model.safetensors-{digit * 16}" for digit in "012"}
    for path in stale:
        path.write_bytes(b"")
    stuck = min(stale)
    original = os.unlink

    def unlink(path, *arguments, **keywords):
        if Path(path) == stuck:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(os, "unlink", unlink)
    save(folder, {}, {"a": torch.zeros(1)})
    assert unlisted_files(folder) == {stuck.name}


def test_folders_that_cannot_be_synced_do_no_harm(folder, monkeypatch):
    original_sync, original_open = os.fsync, os.open

    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        return original_sync(descriptor)

    def open_but_parent(path, *arguments):
        if Path(path) == folder.parent:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original_open(path, *arguments)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "open", open_but_parent)
    save(folder, {"new": 1}, {"a": torch.zeros(1)})
    assert load(folder)[0] == {"new": 1}
    assert not unlisted_files(folder)


def test_weights_are_on_disk_before_the_config_that_names_them(folder, monkeypatch):
    """Every new file is synced before it gets its name, and the folder before and after config.json."""
    events = []

    def note(step, describe):
        original = getattr(os, step)

        def noted(*arguments):
            events.append((step, describe(*arguments)))
            return original(*arguments)

        monkeypatch.setattr(os, step, noted)

    note("fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    note("replace", lambda source, target: (Path(source).stat().st_ino, Path(target).name))
    note("unlink", lambda path: Path(path).name)
    disturbed_saves.save(folder, "first")
    monkeypatch.undo()
    directory = ("fsync", folder.stat().st_ino)
    renames = [i for i, (step, _) in enumerate(events) if step == "replace"]
    for i in renames:
        inode, _ = events[i][1]
        assert ("fsync", inode) in events[:i]
    *_, last_weights, config = renames
    assert events[config][1][1] == "config.json" and len(renames) == 3
    assert directory in events[last_weights:config]
    removed = next(i for i, (step, _) in enumerate(events) if step == "unlink")
    assert directory in events[config:removed]


def test_torn_partial_files_of_a_killed_save_are_removed(folder, monkeypatch):
    (folder / ".config.json-0123456789abcdef").write_text('{"model_type": "sca')
    (folder / ".model.safetensors-0123456789abcdef").write_bytes(b"\0" * 100)
    original = storage.write_new_file

    def write(path, pieces):
        # Before anything is written, which may need the room.
        assert not list(folder.glob(".*-0123456789abcdef"))
        return original(path, pieces)

    monkeypatch.setattr(storage, "write_new_file", write)
    save(folder, CONFIG, load(folder)[1])
    assert not unlisted_files(folder)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_starved_and_simultaneous_saves_leave_a_whole_model(tmp_path):
    script = [sys.executable, disturbed_saves.__file__, str(tmp_path / "model")]
    source = Path(storage.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "survived\n", done.stderr
