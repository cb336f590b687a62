"""Damage to checkpoints is found and named, and only files of a checkpoint are read."""

import json
import random
import re
import shutil

import pytest
from small_checkpoints import every_file, is_whole, save

from scale_invariant_attention.files import write_new_file
from scale_invariant_attention.files.manifest import signed_text
from scale_invariant_attention.training.checkpoints import (
    DamagedCheckpointError,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
)

FILES = ["manifest.json", "model.safetensors", "optimisers.safetensors", "random.safetensors"]


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

    expected = re.escape(str(path / name)) + ".* the last good checkpoint is .*step-00000001"
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
    (first / "model.safetensors").write_bytes(b"{}")
    shutil.rmtree(second)
    second.mkdir()
    with pytest.raises(DamagedCheckpointError, match="every checkpoint") as caught:
        latest_checkpoint(tmp_path)
    assert str(first / "model.safetensors") in str(caught.value)
    assert str(second / "manifest.json") in str(caught.value)
    with pytest.raises(DamagedCheckpointError, match="no other checkpoint is good"):
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
    """Change the manifest of a checkpoint, with a valid hash."""
    file = path / "manifest.json"
    document = json.loads(file.read_bytes()) | changes
    file.write_bytes(signed_text(document))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "update scale-invariant-attention"),
        ({"files": {"../secret": {"bytes": 1, "sha256": "x"}}}, "'../secret'"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "x"}}}, "'/etc/passwd'"),
        ({"files": {"weights.pt": {"bytes": 1, "sha256": "x"}}}, "weights.pt"),
        ({"files": []}, "an object 'files'"),
        ({"files": {"model.safetensors": 3}}, "model.safetensors"),
        ({"step": "1"}, "an integer 'step'"),
        ({"metric": "low"}, "null 'metric'"),
        ({"values": []}, "an object 'values'"),
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
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json (is not JSON|must)"):
        load_checkpoint(path)


def test_a_good_hash_makes_no_safetensors_file(tmp_path):
    path = save(tmp_path, 1)
    (path / "model.safetensors").unlink()
    record = write_new_file(path / "model.safetensors", [b"pickle me"])
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    files["model.safetensors"] = {"bytes": record.bytes, "sha256": record.sha256}
    with pytest.raises(DamagedCheckpointError, match="not a safetensors file"):
        load_checkpoint(with_manifest(path, files=files))
