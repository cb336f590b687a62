"""The paper's scale as far as a CPU goes: its model, its recipe and its data format, for three steps."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from scale_invariant_attention.data import write_shard

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
        *(sys.executable, "-m", "scale_invariant_attention.cli", "reproduce", "table1"),
        *("--scale", "paper", "--schemes", "scale-invariant-p-rope", "--seeds", "1"),
        *("--lengths", "4096", "--tokens", "4096", "--device", "cpu"),
        *("--runs", str(runs), "--results", str(results)),
        *(word for name, value in changes.items() for word in (f"--{name}", str(value))),
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
    assert "Going on from step 2 of 3" in second.stderr
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
