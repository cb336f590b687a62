"""The device to compute on, by name or by what there is."""

import os

import torch


def find_device(name: torch.device | str | None = None) -> torch.device:
    """The device of a name; None is a GPU, or the CPU where there is none.

    Of several processes that torchrun started on a machine each gets a GPU of its own.

    >>> find_device("cpu")
    device(type='cpu')
    >>> find_device("gpu")
    Traceback (most recent call last):
    ValueError: device must be a name such as 'cpu', 'cuda' or 'cuda:1', got 'gpu'
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(
            f"device must be a name such as 'cpu', 'cuda' or 'cuda:1', got {name!r}"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        place = int(os.environ.get("LOCAL_RANK", "0")) if str(device) == "cuda" else device.index
        if place >= count:
            raise ValueError(
                f"device must be one that torch finds here, got {str(device)!r} for GPU {place}, and "
                f"there are {count}; give 'cpu', or start no more processes than there are GPUs"
            )
        device = torch.device("cuda", place)
    return device
