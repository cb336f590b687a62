"""Shards in the published format: written, read, and found out when they are broken."""

import json
import os
import struct

import numpy as np
import pytest

from scale_invariant_attention.data import (
    ShardError,
    check_shard,
    find_shards,
    open_shards,
    read_shard,
    write_shard,
)
from scale_invariant_attention.data.shard_records import RECORD, write_record
from scale_invariant_attention.data.tokens import check_mapped
from scale_invariant_attention.files import FileRecord


def write(path, *tokens):
    write_shard(path, np.array(tokens, np.uint32))
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "one.bin", 50256, 1, 65535)


def test_the_format_byte_by_byte(path):
    content = path.read_bytes()
    assert struct.unpack("<256i", content[:1024]) == (20240520, 1, 3, *[0] * 253)
    assert content[1024:] == b"\x50\xc4\x01\x00\xff\xff"


def test_reading_is_the_inverse_and_maps_memory(path):
    tokens = read_shard(path)
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [50256, 1, 65535]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_writing_replaces_whole_files_and_leaves_no_others(path, tmp_path):
    write(path, 7)
    assert read_shard(path).tolist() == [7]
    assert list(tmp_path.iterdir()) == [path]


def test_tokens_that_a_shard_cannot_hold_are_refused(path):
    with pytest.raises(ValueError, match="tokens must be below 65536 for a shard, got 65536"):
        write(path, 1, 65536)
    with pytest.raises(ValueError, match="holds 1 to 2147483647 tokens, got 0"):
        write(path)
    assert len(read_shard(path)) == 3


def damaged(content, offset, value):
    return content[:offset] + struct.pack("<i", value) + content[offset + 4 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: b"", "has 0 bytes, and the header alone has 1024"),
        (lambda whole: whole[:1023], "has 1023 bytes"),
        (lambda whole: whole[:1024], "truncated: its header announces 3 tokens, so 1030 bytes"),
        (lambda whole: whole[:-2], "truncated: .* and it has 1028"),
        (lambda whole: whole[:-1], "truncated: .* and it has 1029"),
        (lambda whole: whole + b"\0", "too many bytes: .* and it has 1031"),
        (lambda whole: whole + b"\0\0", "too many bytes: .* and it has 1032"),
        (lambda whole: damaged(whole, 0, 20240801), "begins with 20240801, not with 20240520"),
        (lambda whole: b"\x93NUMPY" + whole[6:], "is not a shard: it begins with"),
        (lambda whole: whole[:1024][::-1] + whole[1024:], "is not a shard: it begins with 0"),
        (lambda whole: damaged(whole, 4, 2), "of version 2; only 1 is supported"),
        (lambda whole: damaged(whole, 8, 0)[:1024], "empty shard: its header announces 0 tokens"),
        (lambda whole: damaged(whole, 8, -3), "empty shard: its header announces -3 tokens"),
        (lambda whole: damaged(whole, 8, 2**31 - 1), "truncated: .* 2147483647 tokens"),
    ],
)
def test_damage_is_found_when_opened_and_the_file_named(path, damage, message):
    path.write_bytes(damage(path.read_bytes()))
    for opened in (read_shard, check_shard, open_shards):
        with pytest.raises(ShardError, match=f"one.bin .*{message}"):
            opened(path)


def test_tokens_outside_the_vocabulary_are_found(path):
    with pytest.raises(ShardError, match=r"one\.bin has the token 65535 at index 2, .* at 50256"):
        check_shard(path)
    assert len(check_shard(path, 65536)) == 3
    with pytest.raises(ShardError, match="token 50256 at index 0"):
        check_shard(path, 50256)


def test_one_broken_shard_among_many_is_found_before_anything_is_read(tmp_path):
    for number in range(5):
        write(tmp_path / f"x_train_{number:06}.bin", 1, 2, 3)
    broken = tmp_path / "x_train_000003.bin"
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(ShardError, match="x_train_000003"):
        open_shards(tmp_path)


@pytest.fixture
def folder(tmp_path):
    """As fetched: one for validation, two for training, and a file that does not belong."""
    root = tmp_path / "fineweb"
    root.mkdir()
    write(root / "fineweb_val_000000.bin", 50256, 10)
    write(root / "fineweb_train_000002.bin", 3, 50256, 4)
    write(root / "fineweb_train_000001.bin", 50256, 1, 2)
    (root / "fineweb_train_000003.bin.partial").write_bytes(b"growing")
    (root / "README.md").write_text("no shard")
    return root


def test_a_split_of_a_folder(folder):
    train = open_shards(folder, "train")
    assert train.read(0, len(train)).tolist() == [50256, 1, 2, 3, 50256, 4]
    assert train.document_starts.tolist() == [0, 4]
    assert (train.vocab_size, train.document_start) == (50257, 50256)
    assert open_shards(folder, "validation").read(0, 2).tolist() == [50256, 10]


def test_files_folders_and_patterns(folder, tmp_path):
    train = [folder / "fineweb_train_000001.bin", folder / "fineweb_train_000002.bin"]
    assert find_shards(str(folder / "*_train_*.bin")) == train
    assert find_shards([train[1], train[0]]) == train[::-1]
    assert find_shards([folder, train[0]], "train") == train
    assert find_shards(folder)[-1].name == "fineweb_val_000000.bin"
    assert find_shards(write(tmp_path / "any.tokens", 1)) == [tmp_path / "any.tokens"]


def test_both_splits_at_once_are_refused(folder):
    with pytest.raises(ValueError, match="give split='train' or split='validation'"):
        open_shards(folder)


def test_nothing_found_is_an_error(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no match for .*nothing"):
        open_shards(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"no match for .*\*\.npy"):
        find_shards([folder, str(folder / "*.npy")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no shards in .*empty': .* no file \*\.bin"):
        open_shards(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"for validation in .*: there is no file \*_val_N"):
        open_shards(folder / "fineweb_train_000001.bin", "validation")
    with pytest.raises(FileNotFoundError, match="found no shards in nothing"):
        open_shards([])
    with pytest.raises(ValueError, match="got 'val'"):
        open_shards(folder, "val")


def note(folder, **changes):
    made = {"documents": 1, "tokens": {"train": 9, "validation": 0}, "complete": True}
    noted = {"vocab_size": 256, "document_start": 0, **made}
    (folder / RECORD).write_text(json.dumps(noted | changes))


def test_the_vocabulary_is_the_recorded_one(folder):
    note(folder)
    stream = open_shards(folder, "train")
    assert (stream.vocab_size, stream.document_start) == (256, 0)
    stream = open_shards(folder, "train", vocab_size=512, document_start=511)
    assert (stream.vocab_size, stream.document_start) == (512, 511)


def test_vocabularies_do_not_mix(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write(other / "tokens_train_000000.bin", 0, 1)
    note(other)
    with pytest.raises(ValueError, match="different vocabularies"):
        open_shards([folder, other], "train")


def test_unfinished_shards_are_not_opened(folder):
    note(folder, complete=False)
    with pytest.raises(ValueError, match="unfinished shards; rerun"):
        open_shards(folder, "train")


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "{}", '{"complete": true}', "\xff"])
def test_a_broken_record_is_named(folder, content):
    (folder / RECORD).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"shards\.json cannot be read"):
        open_shards(folder, "train")


def test_a_field_of_a_record_that_is_wrong_is_named(folder):
    for name, value in {
        "vocab_size": "256",
        "complete": 1,
        "document_start": 256,
        "encodinh": "",
    }.items():
        note(folder, **{name: value})
        with pytest.raises(ValueError, match=rf"shards\.json cannot be read \(.*{name}"):
            open_shards(folder, "train")


def hashed(folder):
    noted = {"vocab_size": 256, "document_start": 0, "complete": True}
    write_record(folder, noted, {path.name: FileRecord.of(path) for path in folder.glob("*.bin")})


def test_a_flipped_bit_of_a_record_is_found(folder):
    hashed(folder)
    path = folder / RECORD
    path.write_bytes(path.read_bytes().replace(b'"vocab_size": 256', b'"vocab_size": 254'))
    with pytest.raises(ValueError, match=r"shards\.json cannot be read \(its SHA-256 is"):
        open_shards(folder, "train")


def test_a_changed_token_is_found_by_its_hash(folder):
    hashed(folder)
    open_shards(folder, "train", verify=True)
    path = folder / "fineweb_train_000001.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"train_000001\.bin is corrupt: its SHA-256 is"):
        check_shard(path)
    with pytest.raises(ShardError, match=r"train_000001\.bin is corrupt: its SHA-256 is"):
        open_shards(folder, "train", verify=True)


def test_a_shard_without_a_hash_cannot_be_verified(folder):
    with pytest.raises(ShardError, match="has no recorded SHA-256"):
        open_shards(folder, "train", verify=True)


def test_a_missing_shard_and_one_of_another_size_are_found_at_opening(folder):
    hashed(folder)
    path = folder / "fineweb_train_000001.bin"
    write(path, *range(77))
    with pytest.raises(ShardError, match=r"has 1178 bytes, but shards\.json records"):
        open_shards(folder, "train")
    path.unlink()
    with pytest.raises(
        ShardError, match=r"train_000001\.bin is missing, but shards\.json names it"
    ):
        open_shards(folder, "train")


def test_a_shard_truncated_while_it_is_mapped_is_an_error(tmp_path):
    """Reading memory beyond the end of its file would end the process by SIGBUS."""
    path = write(tmp_path / "one.bin", *range(20_000))
    stream, tokens = open_shards(path), read_shard(path)
    whole = path.read_bytes()
    assert stream.read(19_000, 20_000).tolist() == list(range(19_000, 20_000))
    with path.open("r+b") as file:
        file.truncate(3000)
    message = r"one\.bin was truncated while it was in use: it has 3000 bytes of 41024"
    for use in (
        lambda: stream.read(19_000, 20_000),
        lambda: stream.document_starts,
        stream.fingerprint,
        lambda: check_mapped(tokens),
    ):
        with pytest.raises(ShardError, match=message):
            use()
    # A new file of that name is another one: the old stays readable as long as it is mapped.
    path.unlink()
    path.write_bytes(whole)
    stream = open_shards(path)
    replacement = tmp_path / "other"
    replacement.write_bytes(whole[:1030])
    replacement.replace(path)
    assert stream.read(19_000, 20_000).tolist() == list(range(19_000, 20_000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": "256"}, "vocab_size must be an integer, got '256'"),
        ({"vocab_size": 2**40}, "vocab_size must be 1 to 65536, got 1099511627776"),
        ({"vocab_size": float("inf")}, "must have a finite number as vocab_size, got inf"),
        ({"document_start": 256}, "document_start must be 0 to 255, got 256"),
        ({"document_start": [0]}, r"document_start must be an integer, got \[0\]"),
        ({"documents": None}, "documents must be an integer, got None"),
        ({"tokens": []}, r"tokens must be an object, got \[\]"),
        (
            {"tokens": {"train": "1", "validation": 0}},
            "tokens.train must be an integer of at least 0, got '1'",
        ),
        ({"complete": "yes"}, "complete must be true or false, got 'yes'"),
    ],
)
def test_a_hostile_record_is_named_with_the_field(folder, changes, message):
    note(folder, **changes)
    with pytest.raises(ValueError, match=rf"shards\.json cannot be read \(.*{message}"):
        open_shards(folder, "train")


def test_a_record_that_is_a_pipe_does_not_hang(folder):
    os.mkfifo(folder / RECORD)
    with pytest.raises(ValueError, match=r"shards\.json must be a file, got a pipe"):
        open_shards(folder, "train")
