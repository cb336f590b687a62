"""`sia diagnose` for transformers models: plain, converted and exported."""

import json
import sys

import pytest
import torch
from small_tokenizers import SENTENCES, byte_level
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig
from typer.testing import CliRunner

from scale_invariant_attention import huggingface
from scale_invariant_attention.cli import app
from scale_invariant_attention.data import spread_windows, standard_library
from scale_invariant_attention.huggingface.export import byte_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "initializer_range": 0.3,
}
# Short enough that every query is measured.
LENGTH = 40


def run(*words):
    return CliRunner().invoke(app, ["diagnose", *map(str, words), "--contexts", "2"])


def saved(folder, config=None, scheme=None):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config or LlamaConfig(**SIZES)).eval()
    if scheme is not None:
        huggingface.convert(model, scheme)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


def results_of(folder):
    return json.loads((folder / "diagnosis.json").read_text())


@pytest.mark.parametrize("scheme", [None, "scale-invariant-p-rope"])
def test_spread_and_mean_are_those_of_measure_scores(tmp_path, scheme):
    folder = tmp_path / "llama"
    model = saved(folder, scheme=scheme)
    done = run(folder, "--lengths", LENGTH)
    assert done.exit_code == 0, done.output
    tokens = spread_windows(standard_library("validation"), LENGTH, 2)
    expected = huggingface.measure_scores(model, [tokens])
    results = results_of(tmp_path / "llama-diagnosis")
    assert results["data"]["fingerprint"] == standard_library("validation").fingerprint()
    layers = results["attention"][0]["layers"]
    for name, values in (
        ("mean", expected.mean),
        ("variance", expected.spread.square()),
    ):
        found = torch.tensor([layer["scores"][name] for layer in layers]).double()
        torch.testing.assert_close(found, values, rtol=1e-3, atol=1e-4)
    assert all(layer["unrotated_scores"] is not None for layer in layers)
    first = done.stdout.splitlines()[0]
    assert first.split(", from")[0] == ("llama" if scheme is None else f"llama with {scheme}")
    assert results["config"]["model_type"] == "llama"
    (diagnosis,) = results["diagnosis"]
    mean = diagnosis["layers"][0]["score_mean"]
    assert mean == pytest.approx(float(expected.mean[0].mean()), abs=1e-4)
    assert "huggingface.measure_scores" in diagnosis["advice"]["wide scores"]
    assert (tmp_path / "llama-diagnosis" / "diagnosis.png").exists()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]


def test_an_exported_model_is_diagnosed_as_the_run_it_comes_from(trained, tmp_path):
    words = ("--lengths", LENGTH)
    exported = CliRunner().invoke(
        app, ["export", str(trained), "--to", "hf", "-o", str(tmp_path / "hf")]
    )
    assert exported.exit_code == 0, exported.output
    for folder, output in ((trained, tmp_path / "ours"), (tmp_path / "hf", tmp_path / "theirs")):
        done = run(folder, *words, "-o", output)
        assert done.exit_code == 0, done.output
    ours, theirs = (results_of(tmp_path / name) for name in ("ours", "theirs"))
    for name in ("diagnosis", "attention", "data", "config"):
        assert ours[name] == theirs[name]


def test_ranges_beyond_a_window_are_unseen(tmp_path):
    saved(tmp_path / "mistral", MistralConfig(**SIZES, sliding_window=8))
    done = run(tmp_path / "mistral", "--lengths", LENGTH)
    assert done.exit_code == 0, done.output
    assert "unseen" in done.stdout
    (diagnosis,) = results_of(tmp_path / "mistral-diagnosis")["diagnosis"]
    assert diagnosis["layers"][0]["ranges"][-1]["part"] is None


def test_text_is_encoded_with_the_tokenizer_of_the_folder(tmp_path):
    tokenizer = byte_level()
    folder, texts = tmp_path / "llama", tmp_path / "texts"
    config = LlamaConfig(**{**SIZES, "vocab_size": tokenizer.get_vocab_size()})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    done = run(folder, "--lengths", LENGTH)
    assert done.exit_code == 1
    assert "has no tokenizer.json to encode text with: save the tokenizer there" in done.stderr
    tokenizer.save(str(folder / "tokenizer.json"))
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(f"{number} " + " ".join(SENTENCES) * 20)
    done = run(folder, "--lengths", LENGTH, "--data", f"text:{texts}")
    assert done.exit_code == 0, done.output


def test_weights_must_be_complete_and_not_pickled(tmp_path):
    model = saved(tmp_path / "llama")
    whole = dict(model.state_dict())
    model.save_pretrained(
        tmp_path / "llama",
        state_dict={name: it for name, it in whole.items() if "layers.1.mlp" not in name},
    )
    done = run(tmp_path / "llama", "--lengths", LENGTH)
    assert done.exit_code == 1
    assert "lack tensors of its configuration" in done.stderr
    (tmp_path / "llama" / "model.safetensors").unlink()
    torch.save(whole, tmp_path / "llama" / "pytorch_model.bin")
    done = run(tmp_path / "llama", "--lengths", LENGTH)
    assert done.exit_code == 1


def test_without_transformers_the_error_names_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path / "llama")
    gone = [
        name
        for name in sys.modules
        if name.split(".")[0] == "transformers" or "scale_invariant_attention.huggingface" in name
    ]
    for name in gone:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = run(tmp_path / "llama", "--lengths", LENGTH)
    assert done.exit_code == 1
    assert "pip install 'scale-invariant-attention[huggingface]'" in done.stderr
