"""The real kernels and the real choice, in Triton's interpreter: a broken table is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SUPPORT = Path(__file__).parents[1] / "support"


def test_a_broken_table_is_refused_and_auto_falls_back(tmp_path):
    child = subprocess.run(
        [sys.executable, str(SUPPORT / "interpreted_trust.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert "backend 'triton' failed its self-check on cpu" in child.stdout
    assert "causal, float32: output errs by" in child.stdout
    assert len(list(tmp_path.rglob("self-check-*.json"))) == 1
