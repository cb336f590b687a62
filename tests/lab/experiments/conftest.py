import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Small tensors on a busy machine wait longer for a second thread than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
