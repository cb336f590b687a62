"""Parts of the compiled kernels on their own: the logarithm, tables, and which tiles are skipped."""

import ctypes
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_builds import BUILDER, needs_compiler
from random_contracts import draw

from scale_invariant_attention.attention import Visibility, cpu
from scale_invariant_attention.attention.block_map import BlockMap
from scale_invariant_attention.attention.contract import checked_call
from scale_invariant_attention.attention.cpu_library import instruction_sets

PARTS = Path(__file__).parents[1] / "support" / "kernel_parts.cpp"
# Of the kinds of tiles in csrc/geometry.h, the one that kernels skip.
EMPTY = 0
# The width of every instruction set, and the file whose flags it is compiled with.
SETS = {"portable": (4, None), "avx2": (8, "isa_avx2.cpp"), "avx512": (16, "isa_avx512.cpp")}

pytestmark = needs_compiler


def compiled(name, folder):
    """The parts as a library, compiled for an instruction set."""
    width, flagged_like = SETS[name]
    flags = [*BUILDER["FLAGS"], *BUILDER["X86_64_FLAGS"].get(flagged_like, [])]
    sources, library = BUILDER["SOURCES"], folder / f"{name}.so"
    macros = [f"-DSIA_ISA={name}", f"-DSIA_WIDTH={width}", "-DSIA_VECTORS=2", "-DSIA_ROWS=4"]
    inputs = [str(PARTS), str(sources / "geometry.cpp"), f"-I{sources}"]
    command = [
        *BUILDER["find_compiler"](),
        "-shared",
        *flags,
        "-fvisibility=default",
        "-Wno-unused-function",
        *macros,
        *inputs,
    ]
    BUILDER["run"]([*command, "-o", str(library)])
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    return compiled("portable", tmp_path_factory.mktemp("parts"))


def in_ulps(found, exact):
    """Errors of float32 numbers, in units of the last place of the exact results."""
    return np.abs(found.astype(np.float64) - exact) / np.spacing(exact.astype(np.float32))


@pytest.mark.parametrize("name", SETS)
def test_the_logarithm_errs_at_most_twice_as_much_as_that_of_torch(name, tmp_path):
    if not instruction_sets().get(name, name == "portable"):
        pytest.skip(f"this machine has no {name}")
    library = compiled(name, tmp_path)
    # The bits of positive numbers are in their order: one of 1,000 of all numbers from 0 to 1e38.
    last = int(np.float32(1e38).view(np.int32))
    numbers = np.arange(0, last, 1000, dtype=np.int32)[: last // 1000 // 16 * 16].view(np.float32)
    exact = np.log1p(numbers.astype(np.float64))
    found = numbers.copy()
    library.log1p_of(ctypes.c_void_p(found.ctypes.data), ctypes.c_int64(found.size))
    of_torch = in_ulps(torch.log1p(torch.from_numpy(numbers)).numpy(), exact).max()
    # And half a unit, with which any result is rounded.
    assert in_ulps(found, exact).max() <= 2 * of_torch + 0.5
    assert found[0] == 0


def test_a_share_that_rounds_to_one_leaves_something_below(portable):
    # A distance of sqrt(k^2 - 1), whose share of the entry k is 1 - 1 / 2k.
    k, offsets = 2**24 + 2, (2**24, 8187, 267, 103)
    assert sum(offset**2 for offset in offsets) == k**2 - 1
    table = np.zeros(k + 1, dtype=np.float32)
    query, keys = np.zeros(4, np.float32), np.repeat(np.float32(offsets), 4)
    portable.interpolated_at.restype = ctypes.c_float
    # A line runs backwards from the entry 0, which is its last.
    for index, value, expected in (
        (k - 1, -math.inf, -math.inf),
        (k, -math.inf, -math.inf),
        (k, 1, 1 - 2**-24),
    ):
        table[:] = 0
        table[k - index] = value
        found = portable.interpolated_at(
            *(ctypes.c_void_p(it.ctypes.data) for it in (query, keys)),
            ctypes.c_int64(4),
            ctypes.c_void_p(table.ctypes.data + table.itemsize * k),
            ctypes.c_int64(k + 1),
        )
        assert found == expected


def skipped(library, tensors, visibility, query_block, key_block):
    """Which tiles the kernels skip and the block map: ``[rows, query blocks, key blocks]`` each."""
    call = checked_call(*tensors, affine=None, tau=10.0, visibility=visibility)
    packed, _alive = cpu._packed(call)
    shape = (
        call.visibility.rows,
        -(-call.query.shape[2] // query_block),
        -(-call.key.shape[2] // key_block),
    )
    some, _ = BlockMap(call.visibility_with_positions(), query_block, key_block).every()
    kinds = np.empty(shape, dtype=np.int8)
    at = ctypes.c_void_p(kinds.ctypes.data)
    library.tile_kinds(packed, ctypes.c_int64(query_block), ctypes.c_int64(key_block), at)
    return torch.from_numpy(kinds == EMPTY), ~some.expand(shape)


def test_tiles_outside_a_window_of_the_plane_are_skipped(portable):
    side, block, window = 32, 4, 5
    # Blocks of 4 by 4 tokens in place of rows.
    grid = torch.cartesian_prod(*[torch.arange(side // block)] * 2, *[torch.arange(block)] * 2)
    points = grid[:, :2] * block + grid[:, 2:]
    tensors = torch.zeros(3, 1, 1, side * side, 8).unbind()
    visibility = Visibility(is_causal=False, window=window, key_coordinates=points)
    found, expected = skipped(portable, tensors, visibility, block**2, block**2)
    # A token sees at most the neighbours of its block: all others are at distance 5 or more.
    corners = torch.cartesian_prod(*[torch.arange(side // block)] * 2)
    apart = (corners[:, None] - corners).abs().amax(-1) > 1
    assert torch.equal(found[0], apart)
    assert torch.equal(expected, found)


def test_the_kernels_skip_the_tiles_of_the_block_map(portable):
    names = {field.name for field in fields(Visibility)}
    some_skipped = 0
    for seed in range(300):
        contract = draw(seed, dtypes=(torch.float32,))
        given = {name: value for name, value in contract.settings.items() if name in names}
        tensors = contract.query, contract.key, contract.value
        found, expected = skipped(portable, tensors, Visibility(**given), 12, 20)
        assert torch.equal(found, expected), contract
        some_skipped += bool(found.any())
    assert some_skipped > 100
