"""Settings for the whole test run."""

import os

import moved_backends
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process per core: more threads would only compete with each other.
    torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption(
        "--on", metavar="DEVICE", help="also test the backends of this device, such as cuda"
    )


def pytest_configure(config):
    device = config.getoption("--on")
    if device is not None:
        # Before tests are collected, which name the backends in their parameters.
        try:
            moved_backends.install(device)
        except ValueError as error:
            raise pytest.UsageError(f"--on {device}: {error}") from error


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def gpu(request):
    """The device of --on; tests that need one are skipped without it."""
    device = request.config.getoption("--on")
    if device is None:
        pytest.skip("needs --on cuda: make test-gpu")
    return torch.device(device)
