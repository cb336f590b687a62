"""`sia generate`: text as it comes, whatever bytes it is made of."""

import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from scale_invariant_attention.cli import app, generate
from scale_invariant_attention.model import GPT, GPTConfig


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


def test_bytes_become_characters_when_they_are_whole(trained, monkeypatch):
    written = []
    monkeypatch.setattr(generate, "_print", written.append)
    writing(monkeypatch, [*"é€".encode(), 0xFF, *"𝄞".encode()[:2]])
    assert run(trained, "--prompt", "à").exit_code == 0
    assert written == ["à", "", "é", "", "", "€", "\ufffd", "", "", "\ufffd"]


def test_a_new_document_ends_the_text(trained, monkeypatch):
    writing(monkeypatch, [*b"ab", 0, *b"cd"])
    assert run(trained, "--prompt", "x").stdout == "xab\n"


def test_control_characters_are_shown_not_obeyed(trained, monkeypatch):
    writing(monkeypatch, [0x1B, *b"[2J\a\t\n\r", *"\x9b".encode()])
    assert run(trained).stdout == "\ufffd[2J\ufffd\t\n\ufffd\ufffd\n"


def test_tokens_for_other_vocabularies(tmp_path):
    model = GPT(GPTConfig(vocab_size=300, layers=1, width=32, heads=2))
    torch.nn.init.normal_(model.head.weight)
    model.save_pretrained(tmp_path)
    done = run(tmp_path, "--prompt", "x")
    assert done.exit_code == 1
    assert "the tokens of this model are not bytes: it has 300 of them" in done.stderr
    assert "--tokens" in done.stderr
    done = run(tmp_path, "--tokens", "299,5", "--max-new-tokens", 4, "--temperature", 0)
    expected = model.generate(torch.tensor([[299, 5]]), 4)[0].tolist()
    assert done.stdout == ",".join(map(str, expected)) + "\n"


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
def test_what_users_can_mend_is_told_in_a_sentence(trained, words, message):
    done = run(trained, *words)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr


def test_prompt_or_tokens(trained):
    done = run(trained, "--prompt", "x", "--tokens", "1")
    assert done.exit_code == 2
    assert "not both" in done.output


def test_nothing_there_is_told(tmp_path):
    done = run(tmp_path / "nothing")
    assert done.exit_code == 1
    assert "there is no folder" in done.stderr


def test_a_reader_that_has_had_enough_is_no_error(trained):
    command = [sys.executable, "-m", "scale_invariant_attention.cli", "generate", str(trained)]
    with subprocess.Popen(
        [*command, "--max-new-tokens", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(10)
        process.stdout.close()
        told = process.stderr.read()
    assert b"Traceback" not in told
    assert b"Error" not in told
