"""The memory probe: it finds what is allocated on purpose, and nothing where nothing is."""

import os
import subprocess
import sys

import pytest

MIB = 2**20

SPENDTHRIFT = """
import sys
import torch
from torch.nn.functional import scaled_dot_product_attention
from peak_memory import bytes_above_floor

def attention(query, key, value):
    if query.shape[2] > 64:
        torch.ones({wanted}, dtype=torch.uint8)
    return scaled_dot_product_attention(query, key, value, is_causal=True)

print(bytes_above_floor(attention, 2, 512, 32, backward={backward}))
"""


@pytest.mark.parametrize("backward", [False, True])
def test_a_known_allocation_is_found(benchmarks, load, backward):
    environment = os.environ | load("peak_memory").PROMPT_MALLOC
    environment["PYTHONPATH"] = str(benchmarks)
    script = SPENDTHRIFT.format(wanted=100 * MIB, backward=backward)
    child = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert int(child.stdout) == pytest.approx(100 * MIB, rel=0.1)


@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
def test_own_outputs_and_gradients_do_not_count(load, backend):
    # They alone are 32 MiB; copies made on the way are less.
    assert load("peak_memory").peak_memory(backend, 8, 4096, 64) < 32 * MIB


def test_scores_that_are_held_are_seen(load):
    scores = 4 * 1024**2 * 4
    memory = load("peak_memory").peak_memory("eager", 4, 1024, 32)
    assert 3 * scores < memory < 8 * scores


def test_a_failing_child_is_reported(load):
    with pytest.raises(RuntimeError, match=r"'nobody' at 2 x 64 x 32 could not be measured"):
        load("peak_memory").peak_memory("nobody", 2, 64, 32)
