"""Exports for transformers are complete or absent, have a tokenizer, and open again as a GPT."""

import json
import re
from pathlib import Path

import pytest
import torch
from own_schemes import own_scheme
from small_tokenizers import OTHER, byte_level
from tiny_models import WITHOUT_MEMORY, random_tokens, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from scale_invariant_attention.data import get_encoding
from scale_invariant_attention.files import _durable, locked
from scale_invariant_attention.huggingface import (
    open_from_transformers,
    save_for_transformers,
)
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.schemes import RoPE, Scheme


def mini(**changes):
    return GPT(GPTConfig.preset("mini", layers=1, width=32, heads=2, **changes))


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_every_tensor_survives_export_and_opening(case, tmp_path):
    ours = tiny_model(case, torch.bfloat16 if case == "learned tau" else torch.float32)
    save_for_transformers(ours, tmp_path / "hf", document_start=3)
    back = open_from_transformers(tmp_path / "hf")
    assert back.config == ours.config
    expected, found = ours.state_dict(), back.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(found[name].dtype == expected[name].dtype for name in expected)
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokens = random_tokens(2, 20)
    assert torch.equal(there(tokens).logits, ours(tokens))
    assert GenerationConfig.from_pretrained(tmp_path / "hf").eos_token_id == 3


def test_a_tokenizer_file_gives_the_tokens_of_training(tmp_path):
    tokenizer = byte_level()
    # A file may specify these; training on whole documents uses none of them.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=8)
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{OTHER} $A", special_tokens=[(OTHER, tokenizer.token_to_id(OTHER))]
    )
    tokenizer.save(str(tmp_path / "my.json"))
    encoding = get_encoding(str(tmp_path / "my.json"), document_start=OTHER)
    save_for_transformers(mini(vocab_size=320), tmp_path / "hf", encoding=encoding)
    found = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in ("Größe und Maß: 注意力机制 𝄞", "", "a  b\n"):
        (expected,) = encoding.encode([text.encode()])
        assert found(text).input_ids == expected.tolist()
        assert found.decode(expected.tolist()) == text
    assert found.bos_token_id == found.eos_token_id == encoding.document_start
    assert found.bos_token == OTHER


def test_only_an_earlier_export_is_replaced(tmp_path):
    folder = tmp_path / "hf"
    save_for_transformers(mini(), folder, encoding=get_encoding("bytes"))
    assert "bytes" in (folder / "README.md").read_text()
    save_for_transformers(mini(scheme_name="alibi"), folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        "sia_manifest.json",
    ]
    assert open_from_transformers(folder).config.scheme_name == "alibi"
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        save_for_transformers(mini(), folder)
    mini().save_pretrained(tmp_path / "ours")
    with pytest.raises(FileExistsError, match="holds more than an export"):
        save_for_transformers(mini(), tmp_path / "ours")
    with pytest.raises(FileExistsError, match="is a file"):
        save_for_transformers(mini(), folder / "notes.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "ours"}


def test_an_interrupted_export_keeps_the_earlier_one(tmp_path, monkeypatch):
    folder = tmp_path / "hf"
    save_for_transformers(mini(), folder)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_durable, "_sync_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_for_transformers(mini(scheme_name="alibi"), folder)
    assert open_from_transformers(folder).config.scheme_name == "scale-invariant-p-rope"
    with pytest.raises(KeyboardInterrupt):
        save_for_transformers(mini(), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_remains_of_a_killed_export_are_cleared_by_the_next(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(_durable, "_sync_tree", lambda folder: seen.append(Path(folder).name))
    # One was left by a killed process, the other is being written by a running one.
    left, busy = (tmp_path / f".hf-{digit * 16}" for digit in "ab")
    for folder in (left, busy):
        folder.mkdir()
        (folder / "model.safetensors").write_text("half")
    with locked(busy):
        save_for_transformers(mini(), tmp_path / "hf")
    assert [re.fullmatch(r"\.hf-[0-9a-f]{16}", name) is not None for name in seen] == [True]
    assert {path.name for path in tmp_path.iterdir()} == {"hf", busy.name}


def test_a_registered_scheme_is_exported_and_opened(tmp_path):
    with own_scheme() as name:
        ours = mini(scheme_name=name, scheme_options={"base": 500.0})
        save_for_transformers(ours, tmp_path / "hf")
        assert open_from_transformers(tmp_path / "hf").config == ours.config
        tokens = random_tokens(2, 20)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        assert torch.equal(loaded(tokens).logits, ours(tokens))


def test_a_scheme_without_a_name_is_refused(tmp_path):
    config = GPTConfig.preset("mini", layers=1)
    with pytest.raises(ValueError, match="scheme without a name"):
        save_for_transformers(GPT(config, scheme=Scheme(RoPE(500.0))), tmp_path / "hf")
    assert not list(tmp_path.iterdir())


def test_other_models_and_damaged_exports_are_not_opened(tmp_path):
    with pytest.raises(ValueError, match="got None"):
        open_from_transformers(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="'llama'"):
        open_from_transformers(tmp_path)
    folder = tmp_path / "hf"
    save_for_transformers(mini(scheme_name="logn-rope"), folder)
    (folder / "sia_manifest.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    for wrong in ({"scheme_name": "rope"}, {"num_hidden_layers": 2}, {"hidden_size": 64}):
        (folder / "config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(ValueError, match="do not fit its configuration"):
            open_from_transformers(folder)


def test_a_model_with_a_memory_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(ValueError, match="scheme_name must name a scheme without a memory"):
        save_for_transformers(mini(scheme_name="infini-rope"), tmp_path / "hf", document_start=3)
    assert not any(tmp_path.iterdir())
