"""Damaged, foreign and unsavable models raise errors that name the problem."""

import random

import pytest
import torch
from safetensors.torch import save_file
from saved_models import document, put_weights, rewrite, weights_files

from scale_invariant_attention.model.storage import SavedModelError, load, save


def test_a_flipped_bit_is_found(folder):
    (file,) = weights_files(folder)
    data, draw = file.read_bytes(), random.Random(0)
    for _ in range(200):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(SavedModelError, match=r"is corrupt: its SHA-256 .* records"):
            load(folder)
    file.write_bytes(data)
    load(folder)


def test_a_truncated_or_lengthened_file_is_found(folder):
    (file,) = weights_files(folder)
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        message = rf"has {length} bytes, but config.json records {len(data)}: it was truncated"
        with pytest.raises(SavedModelError, match=message):
            load(folder)
    file.write_bytes(data + b"\0")
    with pytest.raises(SavedModelError, match=rf"{len(data) + 1} bytes.*something was added"):
        load(folder)


def test_a_missing_weights_file_is_named(folder):
    (file,) = weights_files(folder)
    file.unlink()
    with pytest.raises(SavedModelError, match=rf"{file.name} is missing.*copy the whole folder"):
        load(folder)
    file.mkdir()
    with pytest.raises(SavedModelError, match="is missing"):
        load(folder)


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04 a zip of pickles", b"\x80\x02}q\x00.", b"\xff" * 64, b"\x08" + b"\0" * 7],
)
def test_a_foreign_file_is_refused(folder, data):
    put_weights(folder, data)
    with pytest.raises(SavedModelError, match="is not a safetensors file"):
        load(folder)


def test_damaged_headers_are_refused_even_if_the_hash_fits(folder):
    (file,) = weights_files(folder)
    data, draw = file.read_bytes(), random.Random(0)
    header, refused = 8 + int.from_bytes(data[:8], "little"), 0
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            damaged[draw.randrange(header)] = draw.randrange(256)
        put_weights(folder, bytes(damaged))
        try:
            load(folder)
        except SavedModelError:
            refused += 1
    assert refused > 300


def test_missing_and_surplus_tensors_are_named(folder):
    rewrite(folder, tensors=["a", "b", "c"])
    with pytest.raises(SavedModelError, match=r"lacks 'c', which config.json records"):
        load(folder)
    rewrite(folder, tensors=["a"])
    with pytest.raises(SavedModelError, match=r"holds 'b', which config.json does not record"):
        load(folder)
    rewrite(folder, tensors=[f"t{i}" for i in range(9)])
    with pytest.raises(SavedModelError, match=r"lacks 't0', .* 't4' and 4 more"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "../model-0123abcd.safetensors",
        "/etc/passwd",
        "sub/model-0123abcd.safetensors",
        "..\\model-0123abcd.safetensors",
        "C:model-0123abcd.safetensors",
        "model-0123abcd.safetensors\n",
        "model-0123abcd.safetensors/../../x",
        "config.json",
        "..",
        "",
        "notes.txt",
    ],
)
def test_weights_outside_the_folder_or_of_other_names_are_refused(folder, name):
    (record,) = document(folder)["files"].values()
    (folder / "notes.txt").write_text("mine")
    rewrite(folder, files={name: record})
    with pytest.raises(SavedModelError, match=r"only files .* in the folder itself are read"):
        load(folder)
    with pytest.raises(SavedModelError, match="save to another folder"):
        save(folder, {}, {})
    assert (folder / "notes.txt").read_text() == "mine"


BROKEN_CONFIGS = {
    b"": "is not JSON",
    b"{": "is not JSON",
    b"\xff\xfe\x00": "is not JSON",
    b"[" * 100_000: "is not JSON",
    b"[]": "must hold a JSON object, got list",
    b"null": "must hold a JSON object, got NoneType",
    b"{}": "model_type 'scale-invariant-gpt', got None",
    b'{"model_type": "llama", "hidden_size": 4096}': "got 'llama'; load such a model with",
}


@pytest.mark.parametrize("data", BROKEN_CONFIGS)
def test_a_broken_or_foreign_config_is_refused_and_not_overwritten(folder, data):
    (folder / "config.json").write_bytes(data)
    with pytest.raises(SavedModelError, match=BROKEN_CONFIGS[data]):
        load(folder)
    files = set(folder.iterdir())
    with pytest.raises(SavedModelError, match=r"save to another folder, or remove its config.json"):
        save(folder, {}, {})
    assert (folder / "config.json").read_bytes() == data
    assert set(folder.iterdir()) == files


def test_an_edited_config_is_refused(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("rope", "alibi"))
    with pytest.raises(SavedModelError, match=r"config.json is corrupt"):
        load(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format_version": 2}, r"format_version 1, got 2; .*update scale-invariant-attention"),
        ({"format_version": 0}, "format_version 1, got 0"),
        ({"format_version": True}, "format_version 1, got True"),
        ({"format_version": "1"}, "format_version 1, got '1'"),
        ({"format_version": None}, "format_version 1, got None"),
        ({"config": []}, "must have an object 'config'"),
        ({"tensors": None}, "and a list 'tensors' of names"),
        ({"tensors": [1]}, "and a list 'tensors' of names"),
        ({"files": None}, "must have an object 'files', got None"),
        ({"files": ["model.safetensors"]}, "must have an object 'files'"),
        (
            {"files": {"model-0123abcd.safetensors": {"bytes": "1", "sha256": "0"}}},
            "bytes and sha256",
        ),
        ({"files": {"model-0123abcd.safetensors": 1}}, "bytes and sha256"),
    ],
)
def test_a_wrong_entry_of_config_is_named(folder, changed, message):
    rewrite(folder, **changed)
    with pytest.raises(SavedModelError, match=message):
        load(folder)


def test_where_there_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; give"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no config.json; give the folder") as found:
        load(tmp_path)
    assert "pickled" not in str(found.value)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(
        FileNotFoundError, match=r"'pytorch_model.bin', which may be pickled and is never"
    ):
        load(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"is a file; give the folder"):
        load(tmp_path / "pytorch_model.bin")
    with pytest.raises(NotADirectoryError, match="folder must be a folder, got the file"):
        save(tmp_path / "pytorch_model.bin", {}, {})
    (tmp_path / "config.json").mkdir()
    for action in (load, lambda folder: save(folder, {}, {})):
        with pytest.raises(SavedModelError, match=r"config.json must be a file, got a folder"):
            action(tmp_path)


def test_weights_of_other_libraries_cannot_pass_for_ours(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SavedModelError, match="got 'gpt2'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": [1]}, TypeError, "config must be a dict, got list"),
        ({"config": {"a": torch.ones(1)}}, ValueError, "config must be JSON"),
        ({"config": {"a": float("nan")}}, ValueError, "config must be JSON"),
        ({"tensors": {"a": [1.0]}}, TypeError, "'a' must be a tensor, got list"),
        ({"tensors": {1: torch.ones(1)}}, ValueError, "name must be a Unicode string .* got 1"),
        ({"tensors": {"\ud800": torch.ones(1)}}, ValueError, "name must be a Unicode string"),
        ({"tensors": {"__metadata__": torch.ones(1)}}, ValueError, "other than '__metadata__'"),
        ({"tensors": {"a": torch.ones(1).cfloat()}}, ValueError, "'a' .* got torch.complex64"),
        ({"tensors": {"a": torch.ones(1, device="meta")}}, ValueError, "'a' must be a dense"),
        ({"tensors": {"a": torch.eye(3).to_sparse()}}, ValueError, "'a' must be a dense"),
        ({"shard_bytes": 0}, ValueError, "shard_bytes must be at least 1, got 0"),
        ({"shard_bytes": 1.5}, TypeError, "shard_bytes must be an integer"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_written(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        save(tmp_path / "model", **({"config": {}, "tensors": {}} | arguments))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "dtypes", [[], {"w": "int64"}, {"w": 4}, {"w": ["float16"]}, {"missing": "float32"}]
)
def test_dtypes_that_are_none_are_refused(folder, dtypes):
    rewrite(folder, dtypes=dtypes)
    with pytest.raises(
        SavedModelError, match="must have floating dtypes of its tensors in 'dtypes'"
    ):
        load(folder)
