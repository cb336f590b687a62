"""Counted, not timed: work and bytes per rank, and the memory that a rank needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.attention.backends import BACKENDS
from scale_invariant_attention.attention.block_map import BlockMap
from scale_invariant_attention.attention.context_parallel import _ring
from scale_invariant_attention.attention.context_parallel._parts import Parts, cut, with_keys
from scale_invariant_attention.attention.context_parallel._ranks import Ranks
from scale_invariant_attention.attention.contract import checked_call
from scale_invariant_attention.lab.benchmark.context_parallel import Side, started
from scale_invariant_attention.lab.benchmark.peak_memory import PROMPT_MALLOC
from scale_invariant_attention.lab.benchmark.problem import Problem

SUPPORT = Path(__file__).parents[2] / "support"
RANKS, LENGTH, TILE = 8, 8 * 4096, 128


def test_round_trips_bytes_and_subgroups_in_three_processes(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "context_parallel_counts.py"), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def tiles_by_step(kind, rank, **settings):
    """Tiles of scores that a rank's kernels compute in each step of the ring."""
    layouts = [sia.SequenceLayout(LENGTH, RANKS, it, kind) for it in range(RANKS)]
    lengths = tuple(layout.local_length for layout in layouts)

    def call_of(layout):
        nothing = torch.zeros(1, 1, layout.local_length, 1)
        positions = layout.positions()
        seen = Visibility(query_positions=positions, key_positions=positions, **settings)
        return checked_call(nothing, nothing, nothing, affine=None, tau=10.0, visibility=seen)

    ranks = Ranks(None, rank, RANKS)
    parts = Parts(BACKENDS["tiled"], ranks, lengths, lengths, 1, layouts[rank], False)
    own = call_of(layouts[rank])
    plan = _ring.Plan.of(own, parts, _ring.BACKWARD_ROUNDS)
    steps = []
    for step in range(RANKS):
        source = (rank - step) % RANKS
        theirs, tiles = call_of(layouts[source]), 0
        for pieces in plan.keys[source]:
            for piece in pieces:
                tensors = _ring.keys_of(cut(theirs, slice(None), piece.local))
                with_piece = with_keys(own, tensors)
                for queries in plan.seeing(piece, with_piece):
                    seen = with_piece.visibility.tile(queries, slice(None))
                    tiles += int(BlockMap(seen, TILE, TILE).every()[0].sum())
        steps.append(tiles)
    return steps


def test_ranks_of_a_zigzag_layout_multiply_as_much_in_every_step():
    steps = torch.tensor([tiles_by_step("zigzag", rank) for rank in range(RANKS)])
    assert steps.sum(1).max() < 1.05 * steps.sum(1).min()
    assert (steps.amax(0) < 1.05 * steps.amin(0)).all()
    triangle = LENGTH // TILE * (LENGTH // TILE + 1) // 2
    assert steps.sum() == triangle  # nothing hidden is computed, and nothing twice
    contiguous = torch.tensor([tiles_by_step("contiguous", rank) for rank in range(RANKS)])
    assert contiguous.sum() == triangle
    assert contiguous.sum(1).max() > 10 * contiguous.sum(1).min()


def test_a_window_and_documents_leave_ranks_without_work():
    """With contiguous parts, only the neighbour's keys are within a window of 1,000."""
    steps = tiles_by_step("contiguous", 5, window=1000)
    assert steps[0] > 0
    assert steps[1] > 0
    assert not any(steps[2:])


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    "shape", ["1x64", pytest.param("6x128", marks=pytest.mark.slow)], ids=["small", "large"]
)
def test_each_of_two_ranks_needs_little_more_than_half_the_memory(shape):
    """At 32k, forward and backward, with inputs, outputs and gradients."""
    problem = Problem.named(shape, "32768", "forward+backward")
    peaks = []
    for processes in (1, 2):
        side = Side(problem, "ring", "zigzag", processes, 1)
        with started([side], PROMPT_MALLOC) as (workers,):
            peaks.append(workers.run().mib)
    assert peaks[1] <= 0.55 * peaks[0]
