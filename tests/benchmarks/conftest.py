"""The benchmarks are scripts, not a package: tests import them as the scripts import each other."""

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Here and in child processes: on a shared machine, threads that wait for each other crawl."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def benchmarks():
    return BENCHMARKS


@pytest.fixture
def load(monkeypatch):
    """A function that imports a benchmark module by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
