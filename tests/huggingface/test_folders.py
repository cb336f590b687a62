"""Only whole safetensors inside a transformers folder are opened, with the hashes of its manifest."""

import json
import os
import pickle
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scale_invariant_attention.huggingface import open_from_transformers, save_for_transformers
from scale_invariant_attention.huggingface.export import MANIFEST
from scale_invariant_attention.lab.transformers_models import load_transformers
from scale_invariant_attention.model import GPT, GPTConfig

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def ours():
    return GPT(GPTConfig.preset("mini", layers=1, width=32, heads=2, scheme_options={"tau": 10.0}))


@pytest.fixture
def folder(ours, tmp_path):
    save_for_transformers(ours, tmp_path / "hf")
    return tmp_path / "hf"


def without_manifest(folder):
    (folder / MANIFEST).unlink()
    return folder


def openers(folder):
    """The two ways in which such a folder is opened."""
    return (
        lambda: open_from_transformers(folder),
        lambda: load_transformers(folder, torch.device("cpu")),
    )


def refused(folder, error, message):
    for opened in openers(folder):
        with pytest.raises(error, match=message):
            opened()


def index(folder, name):
    """Make the weights those of an index that names one file."""
    names = open_from_transformers(folder).state_dict()
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": {f"gpt.{it}": name for it in names}})
    )


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def saved_llama(folder):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes, **heads)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10**9},
            r"num_hidden_layers is 1000000000, but they have 21 tensors",
        ),
        ({"hidden_size": 64}, "transformers cannot open .*belong together"),
        ({"hidden_size": 2**40}, "transformers cannot open .*belong together"),
        ({"hidden_size": "a"}, "transformers cannot open .*hidden_size"),
        ({"model_type": [1]}, r"config.json must have a string as model_type, got \[1\]"),
    ],
)
def test_configurations_that_no_weights_fit_are_refused(tmp_path, changes, message):
    change_config(saved_llama(tmp_path), **changes)
    with pytest.raises(ValueError, match=message):
        load_transformers(tmp_path, torch.device("cpu"))


def test_a_run_is_no_transformers_folder(tmp_path):
    (tmp_path / "model").mkdir()
    for place in (tmp_path, tmp_path / "model"):
        (place / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=f"sia export {tmp_path} --to hf"):
        load_transformers(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("absolute", [True, False])
def test_weights_outside_the_folder_are_not_followed(folder, tmp_path, absolute):
    without_manifest(folder)
    name = str(tmp_path / "elsewhere.safetensors") if absolute else "../elsewhere.safetensors"
    index(folder, name)
    (folder / WEIGHTS).rename(tmp_path / "elsewhere.safetensors")
    refused(folder, ValueError, "names the file .*only files in the folder itself are read")


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_links_that_leave_the_folder_are_not_followed(folder, tmp_path, name):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(f"../{name}")
    refused(folder, ValueError, rf"{name} is a link to .*, outside of the folder")


def test_a_link_inside_the_folder_is_followed(folder):
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    (folder / WEIGHTS).symlink_to("other.safetensors")
    for opened in openers(folder):
        opened()


def test_the_cache_of_the_hub_is_opened(folder, tmp_path, ours):
    """Files of a snapshot are links to blobs, which are named by their hashes."""
    repository = tmp_path / "hub" / "models--us--it"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, repository / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    back = open_from_transformers(snapshot)
    assert torch.equal(back.head.weight, ours.head.weight)
    load_transformers(snapshot, torch.device("cpu"))
    # A link to anything else leaves the cache.
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(folder / WEIGHTS)
    refused(snapshot, ValueError, "outside of the folder")


def test_a_sharded_model_is_opened(folder, ours):
    without_manifest(folder)
    index(folder, "model-00001-of-00001.safetensors")
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    assert torch.equal(open_from_transformers(folder).head.weight, ours.head.weight)
    (folder / "model-00001-of-00001.safetensors").unlink()
    refused(folder, FileNotFoundError, r"model-00001-of-00001\.safetensors is missing")


def test_missing_weights_are_named(folder):
    (folder / WEIGHTS).unlink()
    refused(
        folder, FileNotFoundError, r"hf has no model\.safetensors: save the model as safetensors"
    )


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("indexed", [True, False])
def test_pickled_weights_are_never_read(folder, tmp_path, monkeypatch, indexed):
    monkeypatch.chdir(tmp_path)
    without_manifest(folder)
    if indexed:
        index(folder, "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    error, message = (
        (ValueError, "only safetensors files are read")
        if indexed
        else (FileNotFoundError, r"pytorch_model\.bin may be pickled and can run any code")
    )
    refused(folder, error, message)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_truncated_weights_are_named(folder, left):
    without_manifest(folder)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:left])
    refused(folder, ValueError, r"model\.safetensors is damaged or no safetensors file")


def test_a_configuration_cannot_name_other_weights(folder, tmp_path):
    without_manifest(folder)
    config = json.loads((folder / "config.json").read_text())
    config["transformers_weights"] = "../elsewhere.safetensors"
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, ValueError, "remove transformers_weights")


def test_an_adapter_cannot_name_another_model(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(ValueError, match="has an adapter"):
        open_from_transformers(folder)


@pytest.mark.parametrize("text", ["[]", "7", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_named(folder, text):
    without_manifest(folder)
    (folder / INDEX).write_text(text)
    refused(folder, ValueError, r"index\.json (is not JSON|must h)")


def test_a_flipped_bit_in_an_export_is_found(folder):
    """Tau is in the configuration, and all weights are in a file that has no hash of its own."""
    for name, old, new in (("config.json", b"10.0", b"90.0"), (WEIGHTS, b"", b"")):
        content = (folder / name).read_bytes()
        changed = content.replace(old, new) if old else content[:-1] + bytes([content[-1] ^ 1])
        assert changed != content
        (folder / name).write_bytes(changed)
        refused(folder, ValueError, rf"{name} is corrupt: .*remove its {MANIFEST}")
        (folder / name).write_bytes(content)
    open_from_transformers(folder)


def test_a_folder_without_a_manifest_is_opened(folder):
    open_from_transformers(without_manifest(folder))
