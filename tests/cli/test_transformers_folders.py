"""`sia generate` and `sia evaluate` for transformers models: plain, converted and exported."""

import json

import pytest
import torch
from small_tokenizers import SENTENCES, byte_level
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.testing import CliRunner

from scale_invariant_attention import huggingface
from scale_invariant_attention.cli import app
from scale_invariant_attention.data import SameTokens, standard_library
from scale_invariant_attention.huggingface.export import byte_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,
}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def saved(folder, scheme=None, **changes):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | changes)).eval()
    if scheme is not None:
        huggingface.convert(model, scheme)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "hf"
    done = run("export", trained, "--to", "hf", "-o", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("scheme", [None, "scale-invariant-p-rope"])
def test_losses_are_those_of_transformers(tmp_path, scheme):
    folder = tmp_path / "llama"
    model = saved(folder, scheme)
    done = run("evaluate", folder, "--lengths", "32,64", "--tokens", 128)
    assert done.exit_code == 0, done.output
    name = "llama" if scheme is None else f"llama with {scheme}"
    assert done.stdout.startswith(f"{name}, from {folder}\n")
    results = json.loads((tmp_path / "llama-evaluation" / "evaluation.json").read_text())
    same = SameTokens(standard_library("validation"), (32, 64), at_most=128)
    for row in results["by_length"]:
        [(tokens, targets)] = same.batches(row["length"], batch_size=8)
        with torch.no_grad():
            logits = model(tokens).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert row["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert results["by_position"]
    # Nothing is added to the folder, which can still be loaded and exported.
    assert not any(path.is_dir() for path in folder.iterdir())


def test_an_exported_model_is_evaluated_as_the_run_it_comes_from(trained, exported, tmp_path):
    words = ("--lengths", "32,64", "--tokens", 256, "--json")
    ours, theirs = (
        json.loads(run("evaluate", folder, *words, "-o", tmp_path / folder.name).stdout)
        for folder in (trained, exported)
    )
    for name in ("by_length", "by_position", "data", "config"):
        assert ours[name] == theirs[name]


def test_an_exported_model_generates_as_the_run_it_comes_from(trained, exported):
    words = ("--prompt", "def ", "--max-new-tokens", 12, "--seed", 3)
    ours, theirs = (run("generate", folder, *words) for folder in (trained, exported))
    assert ours.exit_code == theirs.exit_code == 0, theirs.output
    assert theirs.stdout == ours.stdout != "def \n"


@pytest.mark.parametrize("scheme", [None, "scale-invariant-p-rope"])
def test_the_likeliest_tokens_are_those_of_transformers(tmp_path, scheme):
    model = saved(tmp_path / "llama", scheme)
    prompt = torch.tensor([[0, *b"abc"]])
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)[0].tolist()
    words = ("--tokens", "0,97,98,99", "--max-new-tokens", 8, "--temperature", 0)
    done = run("generate", tmp_path / "llama", *words)
    assert done.exit_code == 0, done.output
    assert done.stdout == ",".join(map(str, expected)) + "\n"


def test_the_end_of_a_text_stops_and_is_not_printed(tmp_path):
    """Many models end a text with another token than they start it with."""
    model = saved(tmp_path / "llama")
    prompt = torch.tensor([[0, *b"abc"]])
    new = model.generate(prompt, max_new_tokens=3, do_sample=False)[0, 4:].tolist()
    assert len(set(new)) == 3
    saved(tmp_path / "llama", eos_token_id=new[1])
    words = ("--max-new-tokens", 8, "--temperature", 0)
    ids = run("generate", tmp_path / "llama", "--tokens", "0,97,98,99", *words)
    assert ids.stdout == f"0,97,98,99,{new[0]},{new[1]}\n"
    text = run("generate", tmp_path / "llama", "--prompt", "abc", *words)
    assert text.exit_code == 0, text.output
    assert len(text.stdout) == len("abc") + 1 + 1


def test_text_is_encoded_with_the_tokenizer_next_to_the_model(tmp_path):
    tokenizer = byte_level()
    saved(tmp_path / "llama", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(tmp_path / "llama" / "tokenizer.json"))
    (tmp_path / "llama" / "tokenizer_config.json").unlink()
    done = run("generate", tmp_path / "llama", "--prompt", SENTENCES[0], "--max-new-tokens", 2)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(SENTENCES[0])
    (tmp_path / "llama" / "tokenizer.json").unlink()
    for command in ("generate", "evaluate"):
        refused = run(command, tmp_path / "llama")
        assert refused.exit_code == 1
        assert "has no tokenizer.json to encode text with" in refused.stderr


@pytest.mark.parametrize("command", ["needle", "export"])
def test_other_commands_name_those_that_open_it(exported, tmp_path, command):
    words = ("--to", "hf", "-o", tmp_path / "out") if command == "export" else ()
    done = run(command, exported, *words)
    assert done.exit_code == 1
    assert "holds a model of transformers, 'scale_invariant_gpt'" in done.stderr
    assert "sia generate, sia evaluate and sia diagnose open it" in done.stderr
    assert f"sia export {exported} --to sia" in done.stderr
