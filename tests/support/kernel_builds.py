"""Builds of the CPU kernels: build_kernels.py as a dictionary, and a mark for tests that compile."""

import runpy
import shutil
from pathlib import Path

import pytest

BUILDER = runpy.run_path(str(Path(__file__).parents[2] / "build_kernels.py"))
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, BUILDER["COMPILERS"])), reason="there is no C++ compiler"
)
