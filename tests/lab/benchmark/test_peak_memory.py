"""The memory probe: it finds what is allocated on purpose, and nothing where nothing is."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from scale_invariant_attention.lab.benchmark.peak_memory import PROMPT_MALLOC, peak_memory
from scale_invariant_attention.lab.benchmark.problem import Problem

MIB = 2**20

SPENDTHRIFT = """
import torch
from scale_invariant_attention.lab.benchmark.peak_memory import bytes_above_floor
from scale_invariant_attention.lab.benchmark.problem import PASSES, Problem
from scale_invariant_attention.lab.benchmark.rivals import sdpa

def attention(query, key, value):
    if key.shape[2] > 64:
        torch.ones({wanted}, dtype=torch.uint8)
    return sdpa(query, key, value)

print([bytes_above_floor(attention, Problem(2, 32, 512, name)) for name in PASSES])
"""


def test_a_known_allocation_is_found():
    script = SPENDTHRIFT.format(wanted=100 * MIB)
    child = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | PROMPT_MALLOC,
        capture_output=True,
        text=True,
        check=True,
    )
    for found in json.loads(child.stdout):
        assert found == pytest.approx(100 * MIB, rel=0.1)


def test_own_outputs_and_gradients_do_not_count():
    # They alone are 16 MiB; copies made on the way are less.
    assert peak_memory("sdpa", Problem(8, 64, 2048, "forward+backward")) < 16 * MIB


def test_scores_that_are_held_are_seen():
    scores = 4 * 1024**2 * 4
    memory = peak_memory("eager", Problem(4, 32, 1024, "forward+backward"))
    assert 3 * scores < memory < 8 * scores


def test_a_failing_child_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match=r"'tiled' at 2x32, 64 tokens, forward could not be"):
        peak_memory("tiled", Problem(2, 32, 64, "forward"))
