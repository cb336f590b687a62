"""The benchmarks are scripts, not a package: tests import them as the scripts import each other."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks():
    return BENCHMARKS


@pytest.fixture
def load(monkeypatch):
    """A function that imports a benchmark module by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
