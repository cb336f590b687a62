"""A model in a folder: every bit comes back, and a save replaces what is its own and nothing else."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from disturbed_saves import unlisted_files
from safetensors.torch import load_file
from saved_models import CONFIG, document, rewrite, weights_files

from scale_invariant_attention.model.storage import load, save

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8]


@pytest.mark.parametrize("shard_bytes", [1, 100, 5 * 10**9])
def test_every_bit_comes_back(tmp_path, shard_bytes):
    random_bytes = torch.randint(0, 256, (8 * 60,), dtype=torch.uint8)
    tensors = {}
    for dtype in DTYPES:
        # Random bits: NaN payloads, infinities and subnormal numbers among them.
        values = random_bytes.view(dtype)[:60]
        tensors |= {
            f"{dtype} matrix": values.view(4, 15),
            f"{dtype} transposed": values.view(4, 15).T,
            f"{dtype} strided": values[::7],
            f"{dtype} strided number": values[::60],
            f"{dtype} scalar": values[3],
            f"{dtype} heads": values[:3].clone(),
            f"{dtype} empty": values[:0].view(0, 5),
            f"{dtype} expanded": values[:1].expand(4),
        }
    tensors["odd bytes"] = random_bytes[:7]
    tensors["mask"] = torch.tensor([True, False, True])
    tensors["parameter"] = torch.nn.Parameter(torch.randn(3))
    tensors["negated"] = torch.randn(3, dtype=torch.complex64).conj().imag
    tensors["negated number"] = torch.randn(1, dtype=torch.complex64).conj().imag
    tensors['näme "quoted" 名'] = torch.ones(1)
    tensors[""] = torch.ones(1)
    save(tmp_path, CONFIG, tensors, shard_bytes=shard_bytes)
    config, loaded = load(tmp_path)
    assert config == CONFIG
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        found = loaded[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        as_bytes = [torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for t in (found, tensor)]
        assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in as_bytes)), name
        assert not found.requires_grad


def test_a_model_without_weights(tmp_path):
    save(tmp_path, {}, {})
    assert load(tmp_path) == ({}, {})


def test_layout_and_names(folder):
    (file,) = weights_files(folder)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert file.name == f"model-{sha256[:8]}.safetensors"
    assert document(folder) == {
        "model_type": "scale-invariant-gpt",
        "format_version": 1,
        "config": CONFIG,
        "tensors": ["a", "b"],
        "files": {file.name: {"bytes": file.stat().st_size, "sha256": sha256}},
        "sha256": document(folder)["sha256"],
    }
    assert load_file(file)["a"].tolist() == torch.arange(12.0).view(3, 4).tolist()
    assert {path.name for path in folder.iterdir()} == {"config.json", file.name}


@pytest.mark.parametrize("padding", range(8))
def test_tensors_are_aligned_to_their_elements(tmp_path, padding):
    names = [f"{dtype}" + "x" * padding * (dtype == DTYPES[0]) for dtype in DTYPES]
    tensors = {n: torch.ones(3, dtype=d) for n, d in zip(names, reversed(DTYPES), strict=True)}
    save(tmp_path, {}, tensors)
    data = weights_files(tmp_path)[0].read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert start % 8 == 0
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_shards_hold_what_fits(tmp_path):
    tensors = {str(i): torch.full((10,), float(i)) for i in range(5)}  # 40 bytes each
    tensors["large"] = torch.zeros(100)
    tensors["last"] = torch.zeros(1)
    save(tmp_path, {}, tensors, shard_bytes=80)
    files = document(tmp_path)["files"]
    assert [set(load_file(tmp_path / name)) for name in files] == [
        {"0", "1"},
        {"2", "3"},
        {"4"},
        {"large"},
        {"last"},
    ]
    for number, (name, record) in enumerate(files.items(), start=1):
        assert name == f"model-{record['sha256'][:8]}-{number:05d}-of-00005.safetensors"


def test_loaded_tensors_are_not_tied_to_the_file(folder):
    _, tensors = load(folder)
    (file,) = weights_files(folder)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    assert tensors["b"].tolist() == [1, 1]
    tensors["b"] += 1


def test_loading_to_a_device_given_as_text_or_object(folder):
    for device in ("cpu", torch.device("cpu")):
        assert load(folder, device=device)[1]["a"].device.type == "cpu"


def test_a_save_removes_the_old_weights_and_nothing_else(folder):
    keep = ["notes.txt", "model.safetensors", "model-0123abcd.safetensors", ".config.json-mine"]
    for name in keep:
        (folder / name).write_text("mine")
    (old,) = (folder / name for name in document(folder)["files"])
    save(folder, {}, {"a": torch.zeros(3)})
    assert not old.exists()
    assert unlisted_files(folder) == set(keep)
    assert all((folder / name).read_text() == "mine" for name in keep)


def test_saving_the_same_weights_again_keeps_them(folder):
    (file,) = weights_files(folder)
    save(folder, {"new": True}, load(folder)[1])
    assert weights_files(folder) == [file]
    assert load(folder)[0] == {"new": True}


def test_a_save_mends_a_corrupt_weights_file(folder):
    _, tensors = load(folder)
    (file,) = weights_files(folder)
    file.write_bytes(b"")
    save(folder, CONFIG, tensors)
    assert load(folder)[1].keys() == tensors.keys()


def test_the_file_of_an_old_model_is_not_overwritten_on_a_collision_of_names(folder, tmp_path):
    """The short hash is all of the name; here the old weights happen to have that of the new."""
    new = {"c": torch.arange(3.0)}
    save(tmp_path / "other", {}, new)
    (taken,) = weights_files(tmp_path / "other")
    (old,) = weights_files(folder)
    old = old.rename(folder / taken.name)
    (record,) = document(folder)["files"].values()
    rewrite(folder, files={old.name: record})
    assert load(folder)[0] == CONFIG

    before = old.read_bytes()
    replaced = []

    def note(original=os.replace):
        def replace(source, target):
            replaced.append(Path(target).name)
            if Path(target).name == "config.json":
                assert old.read_bytes() == before
            return original(source, target)

        return replace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", note())
        save(folder, {}, new)
    assert taken.name not in replaced and len(replaced) == 2
    assert load(folder)[1]["c"].tolist() == [0, 1, 2]
    assert not unlisted_files(folder)
