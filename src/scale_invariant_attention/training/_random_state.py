"""Captures and restores the random generators of a process: torch's, NumPy's and Python's."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Torch's generators on the CPU and each GPU as uint8 tensors, the others as JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def capture_random_state() -> RandomState:
    """The current state of the global generators.

    >>> state = capture_random_state()
    >>> first = torch.rand(3)
    >>> restore_random_state(state.tensors, state.values)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda.{device}": state for device, state in enumerate(states)}
    numpy_state: Any = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    values = {
        "numpy": {
            "bit_generator": numpy_state["bit_generator"],
            "key": numpy_state["state"]["key"].tolist(),
            "position": numpy_state["state"]["pos"],
            "has_gauss": numpy_state["has_gauss"],
            "gauss": numpy_state["gauss"],
        },
        "python": {"version": version, "words": list(words), "gauss": gauss},
    }
    return RandomState(tensors, values)


def restore_random_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore the global generators to the state that :func:`capture_random_state` returned.

    States of GPUs that this machine does not have are ignored.
    """
    if "torch" not in tensors:
        raise ValueError(f"tensors must have the state 'torch', got {sorted(tensors)}")
    numpy_values, python_values = values["numpy"], values["python"]
    torch.set_rng_state(tensors["torch"].cpu())
    for device in range(torch.cuda.device_count()):
        if f"cuda.{device}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{device}"].cpu(), device)
    np.random.set_state(
        {
            "bit_generator": numpy_values["bit_generator"],
            "state": {
                "key": np.array(numpy_values["key"], dtype=np.uint32),
                "pos": numpy_values["position"],
            },
            "has_gauss": numpy_values["has_gauss"],
            "gauss": numpy_values["gauss"],
        }
    )
    random.setstate(
        (python_values["version"], tuple(python_values["words"]), python_values["gauss"])
    )
