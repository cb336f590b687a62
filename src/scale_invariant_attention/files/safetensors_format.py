"""Reads and writes safetensors files, one tensor at a time, so that no copy of all is ever held.

The format: the length of the header as eight bytes, the header as JSON (dtype, shape and offsets of
every tensor, padded with spaces), and the tensors one after the other, little-endian.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
RESERVED_NAME = "__metadata__"


def check_storable(name: object, tensor: object) -> None:
    """Refuse a name or tensor that a safetensors file cannot hold."""
    unicode = isinstance(name, str) and name == name.encode("utf-8", "replace").decode()
    if not unicode or name == RESERVED_NAME:
        raise ValueError(
            f"a tensor's name must be a Unicode string other than {RESERVED_NAME!r}, got {name!r}"
        )
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name!r} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"{name!r} must have one of the dtypes {names}, got {tensor.dtype}")
    if tensor.is_meta or tensor.layout != torch.strided:
        got = f"layout {tensor.layout} on device {tensor.device}"
        raise ValueError(f"{name!r} must be a dense tensor with values, got {got}")


def safetensors_bytes(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The file in pieces: its header, then one piece per tensor.

    >>> import safetensors.torch
    >>> data = b"".join(safetensors_bytes({"tau": torch.tensor([1.0, 10.0])}))
    >>> safetensors.torch.load(data)
    {'tau': tensor([ 1., 10.])}
    """
    # Wide elements first, so that every tensor starts at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, object] = {RESERVED_NAME: {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        # A contiguous copy on the CPU; a tensor of one element may have any stride.
        plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        yield plain.reshape(-1).view(torch.uint8).numpy().data


def read_safetensors(path: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The tensors of a file; ValueError if it is not a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            # Copied: safetensors maps the file, and later changes to it must not reach the tensors.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file ({error})") from error
