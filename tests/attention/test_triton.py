"""The Triton kernels in Triton's interpreter, in child processes: Triton decides at its import."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention.attention import triton as backend

SUPPORT = Path(__file__).parents[1] / "support"
CONTRACTS, AT_ONCE = 200, 25
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def interpret(program, *arguments):
    """Run a program of tests/support with Triton's interpreter, and return what it printed."""
    command = [sys.executable, str(SUPPORT / program), *map(str, arguments)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("start", range(0, CONTRACTS, AT_ONCE))
def test_random_contracts(start):
    assert f"{AT_ONCE} contracts, 0 failures" in interpret("triton_contracts.py", start, AT_ONCE)


@needs_triton
def test_a_read_outside_of_a_tensor_is_seen():
    """Reads of integers are checked too, which no NaN can poison."""
    strides = [
        f"{name}_row"
        for side in ("query", "key")
        for name in (side, f"{side}_positions", f"{side}_documents")
    ]
    found = interpret("triton_out_of_bounds.py", "none", *strides, "key_mask_row").splitlines()
    assert found.pop(0) == "none: nothing"
    assert [line.partition(": ")[0] for line in found] == [*strides, "key_mask_row"]
    assert all(line.endswith("_kernel: read outside of every tensor") for line in found)


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("part", ["corners", "sizes", "torch", "decode"])
def test_in_the_interpreter(part):
    assert "passed" in interpret("triton_cases.py", part)


@needs_triton
@pytest.mark.long
def test_key_biases():
    """The tests of all backends, and nothing skipped."""
    found = interpret("interpreted_tests.py", SUPPORT.parent / "attention" / "test_key_bias.py")
    assert re.search(r"\n\d\d passed, \d+ deselected in", found)


def test_without_triton_the_reason_names_the_extra(monkeypatch):
    monkeypatch.setattr(backend, "INSTALLED", False)
    assert "[triton]" in sia.unavailable_backends("cuda")["triton"]
    query = torch.randn(1, 2, 8, 16)
    with pytest.raises(NotImplementedError, match=r"'triton'.*pip install"):
        sia.scale_invariant_attention(query, query, query, backend="triton")


@needs_triton
def test_on_cpus_only_the_interpreter_runs_it():
    assert "TRITON_INTERPRET=1" in sia.unavailable_backends("cpu")["triton"]
    assert "triton" not in sia.unavailable_backends("cuda")
    assert "meta" in sia.unavailable_backends("meta")["triton"]


@needs_triton
def test_interpreted_kernels_are_not_trusted_for_gpus(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "unset it" in sia.unavailable_backends("cuda")["triton"]


@needs_triton
def test_the_interpreter_must_be_set_before_triton_is_imported():
    script = (
        "import os, triton, scale_invariant_attention as sia; "
        "os.environ['TRITON_INTERPRET'] = '1'; print(sia.unavailable_backends('cpu')['triton'])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "before" in done.stdout


def test_auto_does_not_choose_it_on_cpus():
    query = torch.randn(1, 2, 8, 16)
    assert sia.backend_for(query, query, query) != "triton"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (torch.Tensor.double, "float64"),
        (lambda t: t.repeat(1, 1, 1, 17), "up to 256, not 272"),
    ],
    ids=["float64", "large heads"],
)
def test_what_it_does_not_support_is_refused_with_the_reason(change, reason):
    from scale_invariant_attention.attention import Visibility
    from scale_invariant_attention.attention.contract import checked_call

    query = change(torch.randn(1, 2, 8, 16))
    call = checked_call(query, query, query, affine=None, tau=3.0, visibility=Visibility())
    assert reason in backend.unsupported_reason(call, False)
