import hashlib
import json
import random
import re

import pytest

from scale_invariant_attention.files._durable import FileRecord, write_new_file
from scale_invariant_attention.files.manifest import ManifestFormat, damage_of


class WrongError(ValueError):
    """Raised by the format of these tests."""


FORMAT = ManifestFormat("thing", re.compile(r"[a-z]+\.bin"), WrongError)


@pytest.fixture
def folder(tmp_path):
    files = {"one.bin": write_new_file(tmp_path / "one.bin", [b"one"])}
    (tmp_path / "manifest").write_bytes(FORMAT.text({"third": 1 / 3, "name": "\u00e4"}, files))
    return tmp_path


def test_a_manifest_comes_back(folder):
    manifest = FORMAT.read(folder / "manifest")
    assert manifest.contents["third"] == 1 / 3
    assert manifest.contents["name"] == "\u00e4"
    assert manifest.files == {"one.bin": FileRecord(3, hashlib.sha256(b"one").hexdigest())}
    FORMAT.check_files(folder, manifest, "manifest")


def test_a_flipped_bit_of_a_manifest_is_found(folder):
    path = folder / "manifest"
    data, draw = path.read_bytes(), random.Random(0)
    for _ in range(300):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(WrongError, match=re.escape(str(path))):
            FORMAT.read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "'thing', got 'llama'"),
        ({"format_version": 2}, "format_version 1, got 2; .*update scale-invariant-attention"),
        ({"format_version": True}, "format_version 1, got True"),
        ({"third": 0.5}, "is corrupt"),
        ({"third": float("nan")}, "must have a finite number as third, got nan"),
        ({"files": None}, "is corrupt"),
    ],
)
def test_a_changed_manifest_is_refused(folder, changes, message):
    path = folder / "manifest"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes, indent=2))
    with pytest.raises(WrongError, match=message):
        FORMAT.read(path)


@pytest.mark.parametrize("name", ["../one.bin", "/etc/passwd", "one.pt", "one.bin\n", ""])
def test_only_files_of_the_format_are_named(folder, name):
    path = folder / "manifest"
    path.write_bytes(FORMAT.text({}, {name: FileRecord(3, "0")}))
    with pytest.raises(WrongError, match=r"only files .* in the folder itself are read"):
        FORMAT.read(path)


def test_a_damaged_file_is_named(folder):
    manifest = FORMAT.read(folder / "manifest")
    (folder / "one.bin").write_bytes(b"two")
    FORMAT.check_files(folder, manifest, "manifest", quick=True)
    with pytest.raises(WrongError, match=r"one\.bin is corrupt"):
        FORMAT.check_files(folder, manifest, "manifest")


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


def test_a_quick_check_reads_no_contents(tmp_path):
    path = tmp_path / "file"
    record = write_new_file(path, [b"onetwo"])
    path.write_bytes(b"twoone")
    assert damage_of(path, record, "list", quick=True) is None
    path.write_bytes(b"two")
    assert "truncated" in damage_of(path, record, "list", quick=True)


def test_a_folder_instead_of_a_file_is_damage(tmp_path):
    assert "missing" in damage_of(tmp_path, FileRecord(0, ""), "list")
