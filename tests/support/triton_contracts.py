"""Random contracts on the Triton kernels, in Triton's interpreter: a program for child processes.

    TRITON_INTERPRET=1 python tests/support/triton_contracts.py SEED COUNT

It prints every failure, from time to time how far it came, so that an interrupted run can be resumed
at that seed, and in the end the number of contracts. Triton decides at its import whether it
interprets, so the tests start one process per run.
"""

import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from contract_checks import hidden_nan_leaks
from error_budgets import Judge, public_call, run
from quick_interpreter import hurry
from random_contracts import Contract, draw
from torch import Tensor
from triton.runtime import interpreter

from scale_invariant_attention.attention import _triton_launch
from scale_invariant_attention.attention._triton_plan import Device, Tile

DTYPES = (torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16)
HEADS = 2
# Contracts after which a line says how far a run came.
PROGRESS = 50
SIDES = (16, 32, 64, 64)


def small(seed: int) -> Contract:
    """The contract of a seed, cut to a few rows and heads: programs run one after the other here."""
    contract = draw(seed, DTYPES, long_ones=False, coordinates=False)
    group = contract.query.shape[1] // contract.key.shape[1]
    key_heads = max(1, min(contract.key.shape[1], HEADS // group))
    rows, heads = min(2, contract.query.shape[0]), key_heads * group

    def by_head(tensor: Tensor, given: int) -> Tensor:
        return tensor[:heads] if tensor.ndim and tensor.shape[0] == given else tensor

    given = contract.query.shape[1]
    length_dims = {"gain": 2, "bias": 2, "tau": 1}
    learned = {
        name: by_head(tensor, given) if tensor.ndim == length_dims[name] else tensor
        for name, tensor in contract.learned.items()
        if name != "key_bias"
    }
    key_bias = contract.learned.get("key_bias")
    if key_bias is not None:
        left = {given: heads, contract.key.shape[1]: key_heads}
        learned["key_bias"] = key_bias[:rows, : left.get(key_bias.shape[1], 1)]
    settings = {
        name: value[:rows] if isinstance(value, Tensor) and value.ndim == 2 else value
        for name, value in contract.settings.items()
    }
    return replace(
        contract,
        query=contract.query[:rows, :heads],
        key=contract.key[:rows, :key_heads],
        value=contract.value[:rows, :key_heads],
        learned=learned,
        settings=settings,
        grad_out=contract.grad_out[:rows, :heads],
        grad_lse=contract.grad_lse[:rows, :heads],
    )


def use_tiles_of(seed: int) -> None:
    """Draw the sides of the tiles, and which variants of the kernels run, from a seed."""
    rng = random.Random(seed)
    tiles: dict[str, Tile] = {}
    for kernel in ("forward", "keys", "queries", "decode"):
        tiles[kernel] = Tile(rng.choice(SIDES), rng.choice(SIDES))
    side = rng.choice((16, 32))
    tiles["diagonals"] = Tile(side, side)

    def tile(self: Device, kernel: str, size: int, itemsize: int) -> Tile:
        return tiles[kernel]

    computes = rng.random() < 0.3
    Device.tile = tile  # type: ignore[method-assign]
    Device.computes_transform = lambda *_: computes  # type: ignore[method-assign]
    _triton_launch.DECODE_ROWS = rng.choice((0, 32, 128))


class OutOfBounds(BaseException):
    """Access to memory that belongs to no tensor; the interpreter would wrap an `Exception`."""


def poison_around_tensors() -> None:
    """Put poison before and after everything that kernels read or write, and check what they touch.

    A kernel may read nothing outside of its tensors, even if it does not use it: a GPU may have no
    memory there. Memory between the rows of a tensor counts as inside; some contracts fill it with NaN.
    """
    launch, builder = _triton_launch.Plan.launch, interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    inside_of: list[tuple[int, int]] = []

    def check(access: str, pointers: Any, mask: Any) -> None:
        given, wanted = np.broadcast_arrays(pointers.data, mask.data)
        addresses = given[wanted]
        known = np.zeros(addresses.shape, bool)
        for start, stop in inside_of:
            known |= (addresses >= start) & (addresses < stop)
        if not known.all():
            raise OutOfBounds(f"{access} outside of every tensor")

    def checked_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        check("read", pointers, mask)
        return load(self, pointers, mask, *others)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        check("write", pointers, mask)
        return store(self, pointers, value, mask, *others)

    def launch_poisoned(self: Any, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        frames = {
            name: _framed(tensor)
            for name, tensor in arguments.items()
            if isinstance(tensor, Tensor)
        }
        inside_of[:] = [_addresses(inside) for _, inside in frames.values()]
        moved = {name: inside for name, (_, inside) in frames.items()}
        try:
            launch(self, kernel, grid, **{**arguments, **moved})
        except OutOfBounds as error:
            raise AssertionError(f"{kernel.__name__}: {error}") from None
        for name, inside in moved.items():
            # Kernels write to no memory that rows share.
            if 0 not in inside.stride():
                arguments[name].copy_(inside)

    _triton_launch.Plan.launch = launch_poisoned  # type: ignore[method-assign]
    builder.create_masked_load = checked_load
    builder.create_masked_store = checked_store


MARGIN = 4096


def _framed(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Memory full of poison, and a copy of the tensor inside it with the same strides."""
    span = _span(tensor)
    frame = torch.full((span + 2 * MARGIN,), _poison(tensor.dtype), dtype=tensor.dtype)
    inside = frame[MARGIN : MARGIN + span].as_strided(
        tensor.shape, tensor.stride(), frame.storage_offset() + MARGIN
    )
    if 0 not in tensor.stride():
        inside.copy_(tensor)
    else:
        frame[MARGIN : MARGIN + span] = tensor.as_strided((span,), (1,), tensor.storage_offset())
    return frame, inside


def _poison(dtype: torch.dtype) -> float:
    """A number that spoils every result it reaches: NaN, a huge integer, or a key that is visible."""
    if dtype.is_floating_point:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max // 2


def _span(tensor: Tensor) -> int:
    """Number of elements from the first of a tensor to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _addresses(tensor: Tensor) -> tuple[int, int]:
    """Address of the first element of a tensor, and the one after its last."""
    return tensor.data_ptr(), tensor.data_ptr() + _span(tensor) * tensor.element_size()


def failures(seed: int) -> list[str]:
    """Descriptions of all failed checks of the contract of a seed."""
    contract = small(seed)
    use_tiles_of(seed)
    results = run(contract, public_call("triton"))
    found = Judge(contract).violations(results)
    if seed % 8 == 0:
        again = run(contract, public_call("triton")).tensors()
        found += [
            f"{name} differs when repeated"
            for name, tensor in results.tensors().items()
            if not torch.equal(tensor, again[name])
        ]
    if seed % 8 == 4:
        found += [f"hidden NaN: {leak}" for leak in hidden_nan_leaks(contract, "triton")]
    return [f"{contract}\n    {failure}" for failure in found]


def main() -> int:
    """Check the contracts of some seeds."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    # numpy warns about the infinities and NaN that the contract allows.
    warnings.simplefilter("ignore", RuntimeWarning)
    hurry()
    poison_around_tensors()
    failed = 0
    for done, seed in enumerate(range(first, first + count), 1):
        try:
            found = failures(seed)
        except Exception as error:  # the other seeds are checked all the same
            found = [f"seed {seed}: {type(error).__name__}: {error}"]
        failed += len(found)
        for failure in found:
            print(failure, flush=True)
        if done % PROGRESS == 0 and done < count:
            print(f"up to seed {seed}: {failed} failures", flush=True)
    print(f"{count} contracts, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
