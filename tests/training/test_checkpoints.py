import errno
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scale_invariant_attention.files import FolderInUseError, locked
from scale_invariant_attention.training import checkpoint_folder
from scale_invariant_attention.training.checkpoints import (
    CheckpointNotSavedError,
    DamagedCheckpointError,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

KILLED = Path(__file__).parents[1] / "support" / "killed_checkpoints.py"


def contents(step):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {
            "weight": torch.randn(5, 3, generator=generator),
            "half": torch.randn(7, generator=generator).bfloat16(),
            "empty": torch.zeros(0, 3),
            "special": torch.tensor([float("nan"), float("inf"), -0.0]),
        },
        "optimisers": {},
        "random": {"torch": generator.get_state(), "count": torch.tensor(2**62 + step)},
    }
    return tensors, {
        "step": step,
        "third": 1 / 3,
        "words": [2**127, None, "ä"],
        "nested": {"a": {}},
    }


def save(folder, step, **options):
    return save_checkpoint(folder, step, *contents(step), **options)


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).tolist()


def is_whole(checkpoint):
    tensors, values = contents(checkpoint.step)
    return (
        checkpoint.values == values
        and list(checkpoint.values) == list(values)
        and {g: {n: bits(t) for n, t in m.items()} for g, m in checkpoint.tensors.items()}
        == {g: {n: bits(t) for n, t in m.items()} for g, m in tensors.items()}
    )


def steps(folder):
    return [found.step for found in find_checkpoints(folder)]


def test_what_was_saved_comes_back_to_the_bit(tmp_path):
    path = save(tmp_path / "run" / "checkpoints", 1000, metric=3.25)
    assert path == tmp_path / "run" / "checkpoints" / "step-00001000"
    checkpoint = load_checkpoint(path)
    assert is_whole(checkpoint)
    assert (checkpoint.path, checkpoint.step, checkpoint.metric) == (path, 1000, 3.25)
    # Nothing of it depends on the files any more.
    for file in every_file(path):
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))
    shutil.rmtree(path)
    assert is_whole(checkpoint)


def test_the_newest_is_the_latest(tmp_path):
    assert latest_checkpoint(tmp_path / "nothing") is None
    assert find_checkpoints(tmp_path / "nothing") == []
    assert latest_checkpoint(tmp_path) is None
    for step in (0, 9, 10, 123_456_789):
        save(tmp_path, step)
        latest = latest_checkpoint(tmp_path)
        assert latest.step == step
        assert is_whole(latest)
    assert steps(tmp_path) == [123_456_789, 10]


@pytest.mark.parametrize(
    ("options", "metrics", "kept"),
    [
        ({}, [5, 4, 3, 2, 1], [5, 4]),
        ({}, [1, 4, 3, 2, 5], [5, 4, 1]),
        ({}, [4, 1, 1, 2, 5], [5, 4, 3]),
        ({}, [4, None, 1, float("nan"), 5], [5, 4, 3]),
        ({}, [None] * 5, [5, 4]),
        ({}, [float("nan"), float("-inf"), 9, 8, 7], [5, 4]),
        ({"keep_last": 1}, [3, 2, 1, 5, 5], [5, 3]),
        ({"keep_last": 3}, [1, 2, 3, 4, 5], [5, 4, 3, 1]),
        ({"keep_last": 1, "keep_best": False}, [1, 2, 3, 4, 5], [5]),
    ],
)
def test_the_last_and_the_best_are_kept(tmp_path, options, metrics, kept):
    for step, metric in enumerate(metrics, start=1):
        save(tmp_path, step, metric=metric, **options)
    assert steps(tmp_path) == kept
    assert all(is_whole(load_checkpoint(found.path)) for found in find_checkpoints(tmp_path))


def test_the_new_one_stands_before_an_old_one_goes(tmp_path, monkeypatch):
    save(tmp_path, 1, keep_last=1)
    rename, seen = os.rename, []

    def watched(old, new):
        if Path(new).name.startswith(".removing"):
            seen.append(steps_on_disk())
        rename(old, new)

    def steps_on_disk():
        return sorted(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "rename", watched)
    save(tmp_path, 2, keep_last=1)
    assert seen == [["step-00000001", "step-00000002"]]
    assert steps(tmp_path) == [2]


def test_going_on_from_an_earlier_step_leaves_the_later_ones_behind(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, metric=step, keep_last=5)
    changed, values = contents(20)
    changed["model"]["weight"] += 1
    path = save_checkpoint(tmp_path, 20, changed, values, keep_last=5)
    assert path.name == "step-00000020-2"
    assert steps(tmp_path) == [20, 10]
    latest = latest_checkpoint(tmp_path)
    assert torch.equal(latest.tensors["model"]["weight"], changed["model"]["weight"])
    assert save(tmp_path, 20, keep_last=5).name == "step-00000020"
    assert is_whole(latest_checkpoint(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_cannot_be_read_now_is_not_removed(tmp_path, monkeypatch):
    best = save(tmp_path, 1, metric=1.0)
    save(tmp_path, 2, metric=2.0)
    save(tmp_path, 3, metric=3.0)
    read = Path.read_bytes

    def unreadable(path):
        if path.parent == best:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    with monkeypatch.context() as patches:
        patches.setattr(Path, "read_bytes", unreadable)
        save(tmp_path, 4, metric=4.0)
        assert "Input/output error" in find_checkpoints(tmp_path)[-1].damage
        with pytest.raises(DamagedCheckpointError, match=r"Input/output error.*step-00000004"):
            load_checkpoint(best)
    assert best.exists()
    save(tmp_path, 5, metric=5.0)
    assert steps(tmp_path) == [5, 4, 1]


def test_damaged_ones_are_not_counted_among_the_last(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, keep_last=3)
    (tmp_path / "step-00000003" / "model.safetensors").unlink()
    save(tmp_path, 4, keep_last=2)
    assert steps(tmp_path) == [4, 2]


def every_file(path):
    return sorted(file for file in path.iterdir())


FILES = ["manifest.json", "model.safetensors", "optimisers.safetensors", "random.safetensors"]
FILES += ["values.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("flip", range(12))
def test_a_flipped_bit_is_found_and_the_one_before_offered(tmp_path, name, flip):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    assert [file.name for file in every_file(path)] == FILES
    data = bytearray((path / name).read_bytes())
    # The first and the last bit, and others anywhere.
    last = 8 * len(data) - 1
    place = {0: 0, 1: last}.get(flip, random.Random(f"{name} {flip}").randint(0, last))
    data[place // 8] ^= 1 << place % 8
    (path / name).write_bytes(data)

    expected = re.escape(str(path / name)) + ".* the last good one is .*step-00000001"
    with pytest.raises(DamagedCheckpointError, match=expected):
        load_checkpoint(path)
    newest, before = find_checkpoints(tmp_path)
    assert str(path / name) in newest.damage
    assert before.damage is None
    with pytest.warns(UserWarning, match=re.escape(str(path / name))):
        latest = latest_checkpoint(tmp_path)
    assert latest.step == 1
    assert is_whole(latest)


def test_every_bit_of_the_manifest_counts(tmp_path):
    path = save(tmp_path, 2, metric=1.5) / "manifest.json"
    data = path.read_bytes()
    for place in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert find_checkpoints(tmp_path)[0].damage is not None, place
    path.write_bytes(data)
    assert find_checkpoints(tmp_path)[0].damage is None


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 1, 0.5, -1, "longer", "missing", "folder"])
def test_files_of_another_length_are_found(tmp_path, name, size):
    save(tmp_path, 1)
    file = save(tmp_path, 2) / name
    data = file.read_bytes()
    file.unlink()
    if size == "folder":
        file.mkdir()
    elif size != "missing":
        short = data[: int(size * len(data)) if size == 0.5 else size] if size != "longer" else 0
        file.write_bytes(data + b"\n" if size == "longer" else short)
    with pytest.raises(DamagedCheckpointError, match=re.escape(str(file))):
        load_checkpoint(file.parent)
    with pytest.warns(UserWarning, match=re.escape(str(file))):
        assert is_whole(latest_checkpoint(tmp_path))


def test_if_all_are_damaged_all_are_named(tmp_path):
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    (first / "values.json").write_bytes(b"{}")
    shutil.rmtree(second)
    second.mkdir()
    with pytest.raises(DamagedCheckpointError, match="every checkpoint") as caught:
        latest_checkpoint(tmp_path)
    assert str(first / "values.json") in str(caught.value)
    assert str(second / "manifest.json") in str(caught.value)
    with pytest.raises(DamagedCheckpointError, match="there is no other that is good"):
        load_checkpoint(first)


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / "step-00000009")
    assert "renamed" in find_checkpoints(tmp_path)[0].damage
    with pytest.warns(UserWarning, match="renamed"):
        assert latest_checkpoint(tmp_path).step == 1
    # A copy elsewhere is what it was.
    copied = shutil.copytree(tmp_path / "step-00000001", tmp_path / "copy")
    assert is_whole(load_checkpoint(copied))


def with_manifest(path, **changes):
    """Change the manifest of a checkpoint as somebody would who knows its format."""
    file = path / "manifest.json"
    document = json.loads(file.read_bytes())["contents"] | changes
    file.write_bytes(checkpoint_folder._manifest_text(document))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "update scale-invariant-attention"),
        ({"files": {"../secret": {"bytes": 1, "sha256": "x"}}}, "'../secret'"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "x"}}}, "'/etc/passwd'"),
        ({"files": {"weights.pt": {"bytes": 1, "sha256": "x"}}}, "weights.pt"),
        ({"files": {}}, "does not have"),
        ({"files": {"values.json": 3}}, "values.json"),
        ({"step": "1"}, "does not have"),
        ({"metric": "low"}, "does not have"),
    ],
)
def test_a_manifest_made_by_others_reads_nothing_it_should_not(tmp_path, changes, message):
    with pytest.raises(DamagedCheckpointError, match=message):
        load_checkpoint(with_manifest(save(tmp_path, 1), **changes))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"[" * 100_000, b'{"contents": 3}', b"\xff", b"\x00" * 99]
)
def test_any_text_may_stand_in_the_manifest(tmp_path, text):
    path = save(tmp_path, 1)
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is corrupt"):
        load_checkpoint(path)


def test_a_good_hash_makes_no_safetensors_file(tmp_path):
    path = save(tmp_path, 1)
    (path / "model.safetensors").unlink()
    record = checkpoint_folder.write_new_file(path / "model.safetensors", [b"pickle me"])
    files = json.loads((path / "manifest.json").read_bytes())["contents"]["files"]
    files["model.safetensors"] = {"bytes": record.bytes, "sha256": record.sha256}
    with pytest.raises(DamagedCheckpointError, match="no safetensors file"):
        load_checkpoint(with_manifest(path, files=files))


def test_leftovers_of_killed_saves_are_cleared_and_nothing_else(tmp_path):
    for name in (".saving-0123456789abcdef", ".removing-0123456789abcdef", ".saving-mine", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    save(tmp_path, 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".saving-mine", "notes", "step-00000001"}
    assert latest_checkpoint(tmp_path).step == 1


def failing(monkeypatch, owner, call, number):
    """Let the n-th call of a function find the disk full; whether it has been reached."""
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
                assert "the last one that was saved is" in str(error)
        if not reached:
            assert not failed
            break
        outcomes.add(failed)
        hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        latest = latest_checkpoint(folder)
        assert is_whole(latest)
        assert all(found.damage is None for found in find_checkpoints(folder))
        if failed:
            assert not any(name.startswith(".saving") for name in hidden), number
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
    with pytest.raises(CheckpointNotSavedError, match="none was saved before") as caught:
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
        patches.setattr(checkpoint_folder, "sync_folder", interrupt)
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

    write, read = checkpoint_folder.write_new_file, checkpoint_folder.damage_of

    def watched_write(*arguments):
        seen.append(("write", locked_by_others(tmp_path, False)))
        return write(*arguments)

    def watched_read(*arguments, **keywords):
        found = locked_by_others(tmp_path, True), locked_by_others(tmp_path, False)
        seen.append(("read", *found))
        return read(*arguments, **keywords)

    monkeypatch.setattr(checkpoint_folder, "write_new_file", watched_write)
    save(tmp_path, 2)
    monkeypatch.setattr(checkpoint_folder, "damage_of", watched_read)
    latest_checkpoint(tmp_path)
    load_checkpoint(tmp_path / "step-00000001")
    find_checkpoints(tmp_path)
    assert set(seen) == {("write", True), ("read", True, False)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, {}, {}), ValueError, "step >= 0"),
        ((1.5, {}, {}), TypeError, "step"),
        ((1, {"../model": {}}, {}), ValueError, "'../model'"),
        ((1, {"Model": {}}, {}), ValueError, "'Model'"),
        ((1, {"model": {"a": 3}}, {}), TypeError, "'a' must be a tensor"),
        ((1, {"model": {"a": torch.zeros(1, dtype=torch.complex64)}}, {}), ValueError, "complex"),
        ((1, {}, {"a": float("nan")}), ValueError, "values must hold what JSON can hold"),
        ((1, {}, {"a": torch.zeros(1)}), ValueError, "values must hold what JSON can hold"),
        ((1, {}, {"a": (1, 2)}), ValueError, "'a' does not"),
        ((1, {}, {"a": {1: 2}}), ValueError, "'a' does not"),
        ((1, {}, {3: 2}), ValueError, "3 does not"),
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_touched(
    tmp_path, arguments, error, message
):
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path / "new", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_at_least_one_must_be_kept(tmp_path):
    with pytest.raises(ValueError, match="keep_last >= 1"):
        save(tmp_path, 1, keep_last=0)


def test_what_is_no_checkpoint_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match="step-1"):
        load_checkpoint(tmp_path / "step-1")


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
