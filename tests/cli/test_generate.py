"""`sia generate`: text as it comes, whatever bytes it is made of."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from small_tokenizers import END, OTHER, SENTENCES, byte_level
from tiny_training import tiny_config
from typer.testing import CliRunner

from scale_invariant_attention.cli import app, generate
from scale_invariant_attention.cli.printable import printable
from scale_invariant_attention.data import TextFiles, get_encoding, make_shards
from scale_invariant_attention.files.manifest import signed_text
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import train

# A little more than the 318 of the tokenizer, as vocabularies are padded.
VOCABULARY = 320


def run(*words):
    return CliRunner().invoke(app, ["generate", *map(str, words)])


def writing(monkeypatch, tokens):
    """Let every model write these tokens."""

    def stream(self, prompt, max_new_tokens, *, stop_tokens, **options):
        for token in tokens[:max_new_tokens]:
            yield torch.tensor([token])
            if token in stop_tokens:
                return

    monkeypatch.setattr(GPT, "stream", stream)


def test_the_text_is_that_of_the_model(trained):
    done = run(trained, "--prompt", "def ", "--max-new-tokens", 20, "--temperature", 0)
    model = GPT.from_pretrained(trained / "model")
    prompt = torch.tensor([[0, *b"def "]])
    expected = bytes(model.generate(prompt, 20)[0, 1:].tolist())
    assert done.exit_code == 0
    assert done.stdout == expected.decode(errors="replace") + "\n"


def test_a_seed_gives_the_same_again(trained):
    words = (trained, "--max-new-tokens", 30, "--temperature", 1, "--top-k", 50, "--top-p", 0.9)
    first, second, other = (run(*words, "--seed", seed).stdout for seed in (1, 1, 2))
    assert first == second != other


def test_bytes_become_characters_when_complete(trained, monkeypatch):
    written = []
    monkeypatch.setattr(generate, "_print", written.append)
    writing(monkeypatch, [*"é€".encode(), 0xFF, *"𝄞".encode()[:2]])
    assert run(trained, "--prompt", "à").exit_code == 0
    assert written == ["à", "", "é", "", "", "€", "\ufffd", "", "", "\ufffd"]


def test_a_new_document_ends_the_text(trained, monkeypatch):
    writing(monkeypatch, [*b"ab", 0, *b"cd"])
    assert run(trained, "--prompt", "x").stdout == "xab\n"


def test_control_characters_are_shown_not_obeyed(trained, monkeypatch):
    writing(monkeypatch, [0x1B, *b"[2J\a\t\n\r", *"\x9b\u202e".encode()])
    assert run(trained).stdout == "\ufffd[2J\ufffd\t\n\ufffd\ufffd\ufffd\n"


def test_tokens_for_other_vocabularies(tmp_path):
    model = GPT(GPTConfig(vocab_size=300, layers=1, width=32, heads=2))
    torch.nn.init.normal_(model.head.weight)
    model.save_pretrained(tmp_path)
    done = run(tmp_path, "--prompt", "x")
    assert done.exit_code == 1
    assert "the tokens of this model are not bytes: its vocabulary has 300" in done.stderr
    assert "--tokens" in done.stderr
    done = run(tmp_path, "--tokens", "299,5", "--max-new-tokens", 4, "--temperature", 0)
    expected = model.generate(torch.tensor([[299, 5]]), 4)[0].tolist()
    assert done.stdout == ",".join(map(str, expected)) + "\n"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder with a tokenizer, shards that were made with it, and a run trained on them."""
    folder = tmp_path_factory.mktemp("shards")
    byte_level().save(str(folder / "my.json"))
    for number, sentence in enumerate(SENTENCES):
        (folder / f"{number}.txt").write_text(sentence * 20)
    encoding = get_encoding(str(folder / "my.json"), document_start=OTHER)
    for split, share in (("train", 0), ("validation", 1)):
        texts = TextFiles([folder], suffixes=[".txt"])
        make_shards(texts, folder / split, encoding, validation=share)
    data = f"shards:{folder}/[tv]*/*.bin"
    train(tiny_config(data=data, vocab_size=VOCABULARY, steps=2), folder / "run")
    return folder


def test_text_with_the_tokenizer_of_the_data(shards):
    """Neither it nor the token that starts documents needs to be given."""
    done = run(shards / "run", "--prompt", "Größe 中", "--max-new-tokens", 20, "--temperature", 0)
    tokenizer = byte_level()
    prompt = [1, *tokenizer.encode("Größe 中").ids]
    model = GPT.from_pretrained(shards / "run" / "model")
    out = model.generate(torch.tensor([prompt]), 20, stop_tokens=[1])[0, 1:].tolist()
    expected = tokenizer.decode([token for token in out if token != 1], skip_special_tokens=False)
    assert done.exit_code == 0, done.output
    assert done.stdout == printable(expected) + "\n"
    named = ("--tokenizer", shards / "my.json")
    for words in (named, (*named, "--document-start", OTHER)):
        same = run(
            *(shards / "run", "--prompt", "Größe 中", "--max-new-tokens", 20, "--temperature", 0),
            *words,
        )
        assert same.stdout == done.stdout, same.output


def test_tokens_become_text_when_characters_are_complete(shards, monkeypatch):
    written = []
    monkeypatch.setattr(generate, "_print", written.append)
    single = byte_level(0).encode("€ 中").tokens
    tokens = [byte_level().token_to_id(word) for word in single]
    unknown = VOCABULARY - 1
    writing(monkeypatch, [*tokens, 0, unknown, tokens[0], 1, tokens[0]])
    done = run(shards / "run", "--prompt", "naïve")
    assert done.exit_code == 0, done.output
    assert written == ["naïve", "", "", "€", " ", "", "", "中", END, "\ufffd", "", "\ufffd"]


def test_control_characters_of_a_tokenizer_are_not_obeyed(shards, monkeypatch):
    writing(monkeypatch, byte_level().encode("\x1b[2J\a").ids)
    assert run(shards / "run").stdout == "\ufffd[2J\ufffd\n"


def test_prompts_contain_no_special_tokens(shards, monkeypatch):
    writing(monkeypatch, [])
    done = run(shards / "run", "--prompt", f"a{OTHER}b")
    assert done.stdout == f"a{OTHER}b\n", done.output


def test_a_model_without_its_data(shards):
    """A saved model does not record its tokenizer."""
    folder = shards / "run" / "model"
    done = run(folder, "--prompt", "x")
    assert done.exit_code == 1
    assert "its tokenizer is not recorded. Give it as --tokenizer" in done.stderr
    named = ("--tokenizer", shards / "my.json", "--document-start", OTHER)
    words = ("--prompt", "x", "--temperature", 0, "--max-new-tokens", 5)
    assert run(folder, *words, *named).stdout == run(shards / "run", *words).stdout


def test_a_run_whose_data_is_missing(shards, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(shards / "run", copied)
    config = json.loads((copied / "config.json").read_text()) | {"data": "shards:nowhere"}
    (copied / "config.json").write_bytes(signed_text(config))
    done = run(copied, "--prompt", "x")
    assert done.exit_code == 1
    assert "--tokenizer" in done.stderr
    done = run(copied, "--tokenizer", shards / "my.json", "--max-new-tokens", 3)
    assert done.exit_code == 0, done.output


def test_tokenizers_that_do_not_fit(shards, trained, tmp_path):
    large = tmp_path / "large.json"
    byte_level(merges=80).save(str(large))
    for folder, words, message in (
        (shards / "run", ("--tokenizer", large), "is another tokenizer"),
        (shards / "run", ("--tokenizer", "bytes"), "is another tokenizer"),
        (trained, ("--tokenizer", shards / "my.json"), "made with 'bytes'"),
        (
            shards / "run" / "model",
            ("--tokenizer", large),
            f"has 338 tokens and this model only {VOCABULARY}",
        ),
        (trained, ("--tokenizer", tmp_path / "no.json"), "there is no tokenizer file"),
        (
            shards / "run" / "model",
            ("--tokenizer", shards / "my.json", "--document-start", "</s>"),
            "document_start must be a token of",
        ),
        (shards / "run", ("--prompt", "a\udcff"), "--prompt must be UTF-8 for the tokenizer"),
    ):
        done = run(folder, *words)
        assert done.exit_code == (2 if message.startswith("--") else 1), message
        assert done.stderr.splitlines()[-1].startswith("Error: ")
        assert message in done.stderr


def test_bytes_in_a_vocabulary_with_room(tmp_path, monkeypatch):
    train(tiny_config(vocab_size=320, steps=1), tmp_path)
    writing(monkeypatch, [*b"ab", 300, *b"c", 0])
    assert run(tmp_path, "--prompt", "x").stdout == "xab\ufffdc\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tokenizer", "bytes", "--tokens", "1"), "--tokenizer is for text"),
        (("--document-start", "</s>"), "give --tokenizer too"),
    ],
)
def test_options_that_exclude_each_other(trained, words, message):
    done = run(trained, *words)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tokens", "1,x"), "--tokens must be whole numbers"),
        (("--tokens", "256"), "256"),
        (("--prompt", "a\0b"), "--prompt must not contain a zero byte"),
        (("--temperature", "-1"), "temperature must be at least 0"),
        (("--top-p", "2"), "top_p must be above 0"),
        (("--device", "gpu"), "device must be a name"),
    ],
)
def test_user_errors_are_one_sentence(trained, words, message):
    done = run(trained, *words)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert message in done.stderr.splitlines()[-1]


def test_prompt_or_tokens(trained):
    done = run(trained, "--prompt", "x", "--tokens", "1")
    assert done.exit_code == 2
    assert "not both" in done.output


def test_a_missing_folder_is_an_error(tmp_path):
    done = run(tmp_path / "nothing")
    assert done.exit_code == 1
    assert "there is no folder" in done.stderr


def test_a_closed_pipe_is_not_an_error(trained):
    command = [sys.executable, "-m", "scale_invariant_attention.cli", "generate", str(trained)]
    with subprocess.Popen(
        [*command, "--max-new-tokens", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
    assert b"Traceback" not in errors
    assert b"Error" not in errors
