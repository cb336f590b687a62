"""The paper's scale as far as a CPU goes: its models, recipes and data formats, for a few steps."""

import json
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest
from small_tokenizers import END, byte_level

from scale_invariant_attention.data import write_shard

SIA = (sys.executable, "-m", "scale_invariant_attention.cli")
GPT2_TOKENS = 50_257
DOCUMENT_START = 50_256


@pytest.fixture
def shards(tmp_path):
    """Two files in the format and with the names of the published ones."""
    folder = tmp_path / "fineweb10B"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, count in (("fineweb_train_000001", 4 * 4096), ("fineweb_val_000000", 2 * 4096)):
        tokens = generator.zipf(1.3, count) % GPT2_TOKENS
        tokens[::1000] = DOCUMENT_START
        write_shard(folder / f"{name}.bin", tokens.astype(np.uint32))
    return folder


@pytest.fixture
def encoded_text(tmp_path):
    """Shards of text, with the tokenizer that they were made with beside them."""
    text, tokenizer, folder = (tmp_path / name for name in ("text", "tokenizer.json", "c4"))
    text.mkdir()
    for name in ("argparse", "inspect", "typing", "tarfile", "doctest"):
        source = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
        (text / f"{name}.txt").write_bytes(source.read_bytes())
    byte_level(2000, [path.read_text() for path in text.iterdir()]).save(str(tokenizer))
    made = ("--tokenizer", tokenizer, "--document-start", END, "-o", folder)
    subprocess.run([*SIA, "data", "shards", text, *made], check=True)
    return folder


def options(changes):
    """Fields of a configuration as a command takes them."""
    return [word for name, value in changes.items() for word in (f"--{name}", str(value))]


@pytest.mark.slow
def test_162m_makes_a_step_is_stopped_goes_on_and_is_evaluated(tmp_path, shards):
    runs, results = tmp_path / "runs", tmp_path / "results"
    changes = {
        "data": f"shards:{shards}",
        "batch-size": 1,
        "micro-batch-size": 1,
        "steps": 3,
        "constant-steps": "none",
        "checkpoint-every": 1,
        "keep-checkpoints": 1,
        "validation-tokens": 4096,
        "validation-lengths": 4096,
        "precision": "float32",
        "compile": "false",
    }
    command = [
        *(*SIA, "reproduce", "table1"),
        *("--scale", "paper", "--schemes", "scale-invariant-p-rope", "--seeds", "1"),
        *("--lengths", "4096", "--tokens", "4096", "--device", "cpu"),
        *("--runs", str(runs), "--results", str(results)),
        *options(changes),
    ]
    metrics = runs / "scale-invariant-p-rope-seed-0" / "metrics.jsonl"
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 900
    while not metrics.exists() or metrics.stat().st_size == 0:
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=900)
    assert first.returncode == 130, said
    # Metrics are written out with the first checkpoint: the signal comes in the step after it.
    assert "Stopped and saved at step 2 of 3" in said

    second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    assert second.returncode == 0, second.stderr
    assert "Resuming from step 2 of 3" in second.stderr
    record = json.loads((results / "scale-invariant-p-rope-seed-0.json").read_text())
    config = record["config"]
    assert (config["layers"], config["width"], config["heads"]) == (12, 768, 6)
    assert (config["length"], config["embedding_rate"]) == (4096, 0.3)
    start, _, after = record["training"]["loss"]
    # A head of zeros guesses; one step later the frequent tokens are known.
    assert start == pytest.approx(np.log(50_304), abs=1e-3)
    assert after < start - 0.5
    (at_4k,) = record["losses"]
    assert at_4k["length"] == at_4k["tokens"] == 4096
    assert at_4k["loss"] < start - 0.5


@pytest.mark.slow
def test_162m_is_fine_tuned_to_find_needles_and_tested(tmp_path, encoded_text):
    data = f"shards:{encoded_text}"
    one = {"batch-size": 1, "micro-batch-size": 1, "validation-tokens": 4096}
    tuned = {"data": data, **one, "steps": 2, "warmup-steps": 1, "constant-steps": 0}
    before = {"data": data, **one, "steps": 1, "constant-steps": "none", "validation-lengths": 4096}
    results = tmp_path / "results"
    command = [
        *(*SIA, "reproduce", "table2"),
        *("--scale", "paper", "--schemes", "scale-invariant-p-rope", "--seeds", "1"),
        *("--lengths", "4096,8192", "--examples", "1", "--device", "cpu"),
        *(
            "--before",
            " ".join(f"{name}={value}" for name, value in before.items()),
        ),
        *("--runs", str(tmp_path / "runs"), "--results", str(results)),
        *options({**tuned, "precision": "float32", "compile": "false"}),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    record = json.loads((results / "needles-scale-invariant-p-rope-seed-0.json").read_text())
    config = record["config"]
    assert (config["layers"], config["width"], config["length"]) == (12, 768, 4096)
    assert (config["task"], config["start"]) == ("needles", "scale-invariant-p-rope-seed-0")
    assert len(record["training"]["loss"]) == 2
    # Three needles a text, as in the paper, of which a model of three steps knows nothing.
    assert [row["length"] for row in record["needles"]["lengths"]] == [4096, 8192]
    assert [row["count"] for row in record["needles"]["lengths"]] == [3, 3]
    assert all(row["found"] == 0 for row in record["needles"]["lengths"])
