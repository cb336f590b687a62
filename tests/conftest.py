"""Settings for the whole test run."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process per core: more threads would only compete with each other.
    torch.set_num_threads(1)
