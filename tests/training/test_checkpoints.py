"""Checkpoints come back to the bit, the last and the best are kept, and unsuitable contents refused."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from small_checkpoints import contents, every_file, is_whole, save, steps

from scale_invariant_attention.training.checkpoints import (
    DamagedCheckpointError,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
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


def test_the_new_checkpoint_is_complete_before_an_old_one_is_removed(tmp_path, monkeypatch):
    save(tmp_path, 1, keep_last=1)
    rename, seen = os.rename, []

    def watched(old, new):
        if Path(old).name.startswith("step-"):
            seen.append(steps_on_disk())
        rename(old, new)

    def steps_on_disk():
        return sorted(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "rename", watched)
    save(tmp_path, 2, keep_last=1)
    assert seen == [["step-00000001", "step-00000002"]]
    assert steps(tmp_path) == [2]


def test_saving_an_earlier_step_removes_later_checkpoints(tmp_path):
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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, {}, {}), ValueError, "step must be at least 0"),
        ((1.5, {}, {}), TypeError, "step"),
        ((1, {"../model": {}}, {}), ValueError, "'../model'"),
        ((1, {"Model": {}}, {}), ValueError, "'Model'"),
        ((1, {"model": {"a": 3}}, {}), TypeError, "'a' must be a tensor"),
        ((1, {"model": {"a": torch.zeros(1, dtype=torch.complex64)}}, {}), ValueError, "complex"),
        ((1, {}, {"a": float("nan")}), ValueError, "values must be JSON"),
        ((1, {}, {"a": torch.zeros(1)}), ValueError, "values must be JSON"),
        ((1, {}, {"a": (1, 2)}), ValueError, "'a' does not"),
        ((1, {}, {"a": {1: 2}}), ValueError, "'a' does not"),
        ((1, {}, {3: 2}), ValueError, "3 does not"),
    ],
)
def test_contents_that_would_change_are_refused_before_anything_is_written(
    tmp_path, arguments, error, message
):
    with pytest.raises(error, match=message):
        save_checkpoint(tmp_path / "new", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_at_least_one_must_be_kept(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        save(tmp_path, 1, keep_last=0)


def test_only_checkpoints_can_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match="step-1"):
        load_checkpoint(tmp_path / "step-1")
