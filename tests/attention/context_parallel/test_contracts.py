"""Contracts at random, cut over real processes, within the error budgets of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
CONTRACTS = 105


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_method_keeps_the_contract(ranks):
    words = ["0", str(CONTRACTS), "--ranks", str(ranks)]
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "context_parallel_contracts.py"), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    summary = f"{ranks} ranks: {CONTRACTS} contracts, 0 failures\n"
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == summary, done.stdout + done.stderr
