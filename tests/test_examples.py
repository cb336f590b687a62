"""The single-file GPT trains, packs documents and generates with a cache; examples stay short."""

import os
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def nano_gpt():
    names = runpy.run_path(str(EXAMPLES / "nano_gpt.py"))
    small = {"LAYERS": 2, "WIDTH": 32, "LENGTHS": (32, 128)}
    names["main"].__globals__.update(small)
    names["GPT"].forward.__defaults__ = (None, (None,) * 2)
    return names


def test_nano_gpt_trains_and_generates(nano_gpt, capsys):
    nano_gpt["main"](Namespace(steps=2, tau=10.0, bfloat16=True, compile=False))
    printed = capsys.readouterr().out
    assert "step 0: loss 5." in printed
    assert "held-out loss with 128 tokens: " in printed
    assert "\nimport " in printed
    assert "\ndef __init__(" in printed


def test_a_padded_batch_with_a_cache_gives_what_each_prompt_gives_alone(nano_gpt):
    model, prompts = nano_gpt["GPT"](), [b"import torch", b"x"]
    seen = []
    model.register_forward_hook(lambda _, __, logits: seen.append(logits[:, -1]))
    texts = nano_gpt["generate"](model, prompts, 5)
    cached = torch.stack(seen, 1)  # [rows, steps, vocabulary]
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        assert text.startswith(prompt)
        alone = model(torch.tensor([list(text)]))[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(cached[row], alone, atol=1e-4, rtol=1e-4)


def test_packed_documents_do_not_see_each_other(nano_gpt):
    model, text = nano_gpt["GPT"](), torch.randint(1, 256, (1, 40))
    text[0, [0, 25]] = 0
    packed = model(text, key_documents=(text == 0).cumsum(1))
    torch.testing.assert_close(packed[:, 25:], model(text[:, 25:]), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_nano_gpt_compiles(nano_gpt, capsys):
    nano_gpt["main"](Namespace(steps=2, tau=10.0, bfloat16=False, compile=True))
    assert "held-out loss with 128 tokens: " in capsys.readouterr().out


def test_context_parallel_gives_the_same_losses_with_any_number_of_processes():
    """The command of its docstring, on fewer tokens."""
    printed = []
    for processes in (1, 2):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(processes), str(EXAMPLES / "context_parallel.py")),
                *("--length", "509", "--steps", "6"),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        *losses, last = done.stdout.splitlines()
        assert last.startswith(f"{processes} processes, 509 tokens: ")
        printed.append([float(line.rpartition(" ")[2]) for line in losses])
    assert len(printed[0]) == 2
    assert printed[1] == pytest.approx(printed[0], abs=2e-4)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_examples_are_short(file):
    assert len(file.read_text().splitlines()) < 120
