"""Ranks that disagree, raise, die or hang stop the others, with an error that names them, in time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
# That of the process group, and how long ranks collect reports after a failure.
TIMEOUT, GRACE = 4, 3


def outcomes(folder, scenario):
    """Outcome and seconds by name and rank."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "context_parallel_failures.py"), str(folder), scenario],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {(name, rank): (end, seconds) for name, rank, end, seconds in lines}


def test_ranks_that_disagree_stop_all_of_them(tmp_path):
    ends = outcomes(tmp_path, "disagree")
    named = {
        "method": "method: rank 0, rank 2: ring; rank 1: gather",
        "tau": "tau: rank 0, rank 2: (torch.float64, [10.0]); rank 1: (torch.float64, [3.0])",
        "tables": "rank 1: None",
        "heads": "query (batch, heads, head_dim): rank 0, rank 2: [1, 3, 8]; rank 1: [1, 6, 8]",
        "dtype": "dtype: rank 0, rank 2: torch.float32; rank 1: torch.float64",
        "window": "window: rank 0, rank 2: None; rank 1: 7",
        "documents": "key_documents: rank 0, rank 2: None; rank 1: 1 rows",
        "layout": "rank 1: contiguous, 48 tokens",
        "gradients": "gradients of tau or affine: rank 0, rank 2: False; rank 1: True",
        "unshard": "rank 1: zigzag of 48 tokens over 3 ranks",
    }
    for name, difference in named.items():
        for rank in range(3):
            end, _ = ends[name, rank]
            assert end.startswith("RanksDisagreeError: "), (name, rank, end)
            assert difference in end, (name, rank, end)


def test_wrong_arguments_of_one_rank_stop_all_of_them(tmp_path):
    ends = outcomes(tmp_path, "wrong")
    named = {
        "unknown method": "ValueError: method must be one of ring, gather, heads; got 'rings'",
        "layout of another rank": "ValueError: layout is that of rank 0 of 3, but this process",
        "layout of another length": "ValueError: query must have length 20",
        "shape": "ValueError: key_documents must be [16] or [1, 16], got shape (5,)",
        "no positions": "ValueError: key_positions must be given, or the layout",
        "coordinates": "ValueError: key_coordinates must be None",
        "backend without passes": "NotImplementedError: backend 'flex' cannot run this call",
        "heads that ranks cannot share": "query has 4 heads, which 3 ranks cannot share",
        "short tables": "ValueError: the tables of affine cover 3 distances",
    }
    for name, error in named.items():
        assert error in ends[name, 1][0], (name, ends[name, 1])
        for rank in (0, 2):
            end, _ = ends[name, rank]
            assert end.startswith("RanksDisagreeError: rank 1 failed in"), (name, rank, end)
            assert error in end, (name, rank, end)
    for rank in range(3):
        # Nothing of it is left behind, and tables must reach across ranks.
        assert ends["the next call", rank][0] == "ended"
        assert "cover 20 distances, but this call needs 48" in ends["short across ranks", rank][0]


@pytest.mark.parametrize(
    ("scenario", "culprit", "blamed"),
    [
        ("raise_inside", 1, "rank 1 raised MemoryError: no memory left for this test"),
        ("die_in_backward", 2, "rank 2 ended or hangs"),
        ("die_at_the_store", 0, "rank 0"),
        ("hang", 1, "rank 1 ended or hangs"),
    ],
)
def test_a_rank_that_fails_stops_the_others(scenario, culprit, blamed, tmp_path):
    ends = outcomes(tmp_path, scenario)
    for rank in {0, 1, 2} - {culprit}:
        end, seconds = ends[scenario, rank]
        assert end.startswith(f"RankFailedError: {blamed}"), end
        # On a busy machine, a few seconds more.
        assert seconds < TIMEOUT + GRACE + 5
    if scenario == "raise_inside":
        assert ends[scenario, culprit][0].startswith("MemoryError: no memory left")
