import pytest
import torch

from scale_invariant_attention.training.ranks import find_device


@pytest.fixture
def gpus(monkeypatch):
    """A machine that claims to have two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return 2


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device() == torch.device("cpu")


def test_each_process_has_its_own_gpu(gpus, monkeypatch):
    assert find_device() == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_device() == find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cuda:0") == torch.device("cuda", 0)
    assert find_device("cpu") == torch.device("cpu")


def test_a_missing_device_is_reported(gpus, monkeypatch):
    with pytest.raises(ValueError, match="got 'cuda:2' for GPU 2, and there are 2"):
        find_device("cuda:2")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="start no more processes than there are GPUs"):
        find_device()
