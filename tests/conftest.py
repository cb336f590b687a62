"""Settings for the whole test run."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process a core: threads of their own would only get in each other's way.
    torch.set_num_threads(1)
