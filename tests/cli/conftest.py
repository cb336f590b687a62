import pytest
import torch
from tiny_training import tiny_config

from scale_invariant_attention.training import train


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Small tensors on a busy machine wait longer for a second thread than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that a second has trained; each file of tests has its own."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny_config(), folder)
    return folder
