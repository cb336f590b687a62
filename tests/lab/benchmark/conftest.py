import pytest
import torch

from scale_invariant_attention.lab.benchmark.bounds import Bounds


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Here and in child processes: on a shared machine, threads that wait for each other crawl."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bounds():
    return Bounds(100.0, "a guess", 10.0, "another")
