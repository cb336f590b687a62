"""The state of the random generators of a process: torch's, NumPy's and Python's, exactly."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Tensors, uint8, of torch's generators on the CPU and on each GPU, and values for JSON."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def capture_random_state() -> RandomState:
    """The state of the global generators now.

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
    """Put the global generators back to where :func:`capture_random_state` found them.

    States of GPUs that this machine does not have are passed over: their numbers cannot come again.
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
