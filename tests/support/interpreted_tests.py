"""Tests that take a backend by name, on the Triton kernels in Triton's interpreter: a program.

    TRITON_INTERPRET=1 python tests/support/interpreted_tests.py tests/attention/test_key_bias.py

It runs the tests of a file for the backend "triton on cpu", and prints what pytest prints.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from quick_interpreter import hurry

if __name__ == "__main__":
    torch.set_num_threads(1)
    hurry()
    # numpy warns about the infinities and NaN that the contract allows.
    options = ["--on", "cpu", "-k", "triton", "-n", "0", "-W", "ignore::RuntimeWarning"]
    sys.exit(pytest.main([sys.argv[1], *options, "-q", "-p", "no:cacheprovider"]))
