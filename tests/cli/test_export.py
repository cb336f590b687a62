"""`sia export`: to transformers and back, and its errors."""

import json
import sys

import pytest
import torch
from small_tokenizers import SENTENCES, byte_level
from tiny_training import tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.data import TextFiles, get_encoding, make_shards
from scale_invariant_attention.data.shard_records import RECORD
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import train


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_a_run_goes_to_transformers_and_back(trained, tmp_path):
    done = run(trained, "--to", "hf", "-o", tmp_path / "hf")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "hf") in done.stdout
    ours = GPT.from_pretrained(trained / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    tokens = tokenizer("\0def ", return_tensors="pt").input_ids
    assert tokens.tolist() == [[0, *b"def "]]
    written = model.generate(tokens, max_new_tokens=10, do_sample=False)
    expected = ours.generate(tokens, 10, stop_tokens=[0])
    assert torch.equal(written, expected)
    card = (tmp_path / "hf" / "README.md").read_text()
    origin = json.loads(card.split("```json")[1].split("```")[0])
    assert origin["training"]["steps"] == 8
    assert origin["runs"][0]["step"] == 0
    done = run(tmp_path / "hf", "--to", "sia", "-o", tmp_path / "back")
    assert done.exit_code == 0, done.output
    again = GPT.from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in ours.state_dict().items())


def test_a_checkpoint_and_a_saved_model(trained, tmp_path):
    checkpoint = sorted((trained / "checkpoints").iterdir())[0]
    for name, folder in (("checkpoint", checkpoint), ("model", trained / "model")):
        done = run(folder, "--to", "hf", "-o", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert (tmp_path / name / "tokenizer.json").exists()
    card = (tmp_path / "checkpoint" / "README.md").read_text()
    assert '"unfinished_at_step": 6' in card


def test_models_of_other_vocabularies(tmp_path):
    byte_level().save(str(tmp_path / "my.json"))
    (tmp_path / "a.txt").write_text(SENTENCES[0] * 40)
    encoding = get_encoding(str(tmp_path / "my.json"))
    for split, share in (("train", 0), ("validation", 1)):
        make_shards(
            TextFiles([tmp_path], suffixes=[".txt"]), tmp_path / split, encoding, validation=share
        )
    data = f"shards:{tmp_path}/[tv]*/*.bin"
    train(tiny_config(data=data, vocab_size=320, steps=2), tmp_path / "run")
    assert run(tmp_path / "run", "--to", "hf", "-o", tmp_path / "hf").exit_code == 0
    found = AutoTokenizer.from_pretrained(tmp_path / "hf")("naïve").input_ids
    assert found == byte_level().encode("naïve").ids
    # The same model without a record of its tokenizer.
    done = run(tmp_path / "run" / "model", "--to", "hf", "-o", tmp_path / "bare")
    assert "Without a tokenizer" in done.stdout
    assert not (tmp_path / "bare" / "tokenizer.json").exists()
    done = run(
        *(tmp_path / "run" / "model", "--to", "hf", "-o", tmp_path / "bare"),
        *("--tokenizer", tmp_path / "my.json"),
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "bare" / "tokenizer.json").exists()


def test_the_tokens_of_published_shards_are_those_of_gpt_2(tmp_path):
    """Such shards have no record of their encoding, and no tokenizer file to copy."""
    (tmp_path / "a.txt").write_text("text " * 200)
    for split, share in (("train", 0), ("validation", 1)):
        texts = TextFiles([tmp_path], suffixes=[".txt"])
        make_shards(texts, tmp_path / split, get_encoding("bytes"), validation=share)
        (tmp_path / split / RECORD).unlink()
    data = f"shards:{tmp_path}/[tv]*/*.bin"
    train(tiny_config(data=data, vocab_size=50_304, width=4, heads=1, steps=1), tmp_path / "run")
    done = run(tmp_path / "run", "--to", "hf", "-o", tmp_path / "hf")
    assert done.exit_code == 0, done.output
    assert "those of tiktoken gpt2" in " ".join(done.stdout.split())
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["eos_token_id"] == 50_256
    assert not (tmp_path / "hf" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere", "--to", "hf"), "there is no folder nowhere"),
        (("nowhere", "--to", "sia"), "must be a transformers folder"),
    ],
)
def test_what_cannot_be_exported(words, message, tmp_path):
    done = run(*words, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_is_refused_with_to_sia(tmp_path):
    done = run("nowhere", "--to", "sia", "--tokenizer", "mine.json", "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "--tokenizer goes with --to hf" in done.stderr


def test_a_folder_with_something_else_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "mine").write_text("")
    done = run("nowhere", "--to", "hf", "-o", tmp_path)
    assert "holds more than an export" in done.stderr


def test_without_transformers_the_error_names_what_to_install(trained, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if "attention.huggingface" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = run(trained, "--to", "hf", "-o", tmp_path / "hf")
    assert done.exit_code == 1
    assert "scale-invariant-attention[huggingface]" in done.stderr
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_the_name_of_a_saved_model_is_that_of_the_config(tmp_path):
    GPT(GPTConfig.preset("mini", layers=1, scheme_name="yarn")).save_pretrained(tmp_path / "ours")
    assert run(tmp_path / "ours", "--to", "hf", "-o", tmp_path / "hf").exit_code == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["scheme_name"], config["train_length"]) == ("yarn", 256)
