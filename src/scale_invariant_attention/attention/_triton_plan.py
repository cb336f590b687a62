"""A call as the Triton kernels read it: arguments, tile sizes, gain and bias by offset, block lists."""

from contextlib import nullcontext
from ctypes import c_float
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import e, log2
from typing import Any

import torch
import triton
from torch import Tensor

from ._triton_rows import line_kernel
from .block_map import BlockMap
from .contract import AttentionCall
from .numerics import allows_tf32

# Offsets that a tile may reach beyond the visible pairs: the sum of its sides at most.
MARGIN = 256
# Strides are passed in units of this many elements, if they all are multiples of it: 16 bytes of a
# half-precision tensor. The kernels then know that rows are aligned, whatever the length.
ALIGNED = 8
FAR = 2**30
# Kernels compute addresses within a tile of at most 128 rows in 32 bits.
FARTHEST_ROW = 2**31 // 128


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile, and how a kernel runs it."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2
    # Whether the compiler puts the warps of a product side by side along columns, not along rows.
    beside: bool = False

    def arguments(self, by_key: bool = False) -> dict[str, Any]:
        """The arguments of a kernel with a tile of queries by keys or, `by_key`, keys by queries."""
        # Bits of rows and columns that count the elements of a thread. A fragment of 16 by 8 has rows
        # 8 apart and neighbouring columns; beyond what all warps cover, they start again.
        height, width = (16, 8 * self.warps) if self.beside else (16 * self.warps, 8)
        rows, columns = 8 | -height, 1 | -width
        return {
            "BLOCK_M": self.queries,
            "BLOCK_N": self.keys,
            "QUERY_BITS": columns if by_key else rows,
            "KEY_BITS": rows if by_key else columns,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


@dataclass(frozen=True)
class Device:
    """The properties of a GPU that tile sizes and kernel variants depend on."""

    kind: str  # "cuda", "hip" or "interpreter"
    capability: int = 0
    processors: int = 8

    def tile(self, kernel: str, size: int, itemsize: int) -> Tile:
        """The tile of "forward", "keys" (their gradients), "queries", "diagonals" or "decode".

        `size` is the padded size of a head.
        """
        if self.kind == "interpreter":
            return Tile(16, 16) if kernel == "diagonals" else Tile(32, 32)
        if itemsize == 4:
            return (FLOAT32_TILES if size <= 128 else WIDE_FLOAT32_TILES)[kernel]
        if size > 128:
            return WIDE_TILES[kernel]
        column = 0 if size <= 64 else 1
        if self.kind == "hip":
            return HIP_TILES[kernel][column]
        return (HOPPER_TILES if self.capability in (90, 100) else AMPERE_TILES)[kernel][column]

    def computes_transform(self, size: int, itemsize: int) -> bool:
        """Whether gain and bias for tau are better computed in registers than read from a line.

        Before Hopper, matrix products with large heads leave no room in the path to shared memory and
        the cache, and all the more in the other units.
        """
        return self.kind == "cuda" and self.capability < 90 and itemsize == 2 and size == 128


# For head sizes up to 64 and up to 128, in half precision: found by compiling for these devices and
# counting, not by running.
AMPERE_TILES = {
    "forward": (Tile(128, 64, 4, 3), Tile(128, 64, 8, 3)),
    "keys": (Tile(32, 128, 8, 2), Tile(64, 64, 8, 2, beside=True)),
    "queries": (Tile(128, 64, 8, 2), Tile(128, 32, 8, 2)),
    "diagonals": (Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3)),
}
HOPPER_TILES = {
    "forward": (Tile(128, 128, 8, 3), Tile(128, 128, 8, 2)),
    "keys": (Tile(64, 128, 8, 3), Tile(32, 128, 8, 2)),
    "queries": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
    "diagonals": (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
    "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3)),
}
HIP_TILES = {
    "forward": (Tile(128, 32, 4, 1), Tile(64, 32, 4, 1)),
    "keys": (Tile(32, 64, 4, 1), Tile(16, 64, 4, 1)),
    "queries": (Tile(64, 32, 4, 1), Tile(64, 16, 4, 1)),
    "diagonals": (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
    "decode": (Tile(16, 64, 4, 1), Tile(16, 32, 4, 1)),
}
# Tiles that would spill with explicit positions, which are 64-bit numbers, or with sinks; and those
# used instead.
LESS_CROWDED = {
    Tile(128, 64, 4, 3): Tile(128, 32, 4, 3),
    Tile(128, 64, 8, 2): Tile(128, 32, 8, 2),
    Tile(32, 128, 8, 2): Tile(16, 128, 8, 2),
}
# For larger heads.
WIDE_TILES = {
    "forward": Tile(64, 32, 8, 2),
    "keys": Tile(32, 32, 8, 1),
    "queries": Tile(32, 32, 8, 1),
    "diagonals": Tile(32, 32, 8, 1),
    "decode": Tile(16, 32, 4, 2),
}
FLOAT32_TILES = WIDE_TILES | {"forward": Tile(32, 32, 8, 2), "decode": Tile(16, 16, 8, 1)}
WIDE_FLOAT32_TILES = dict.fromkeys(WIDE_TILES, Tile(16, 16, 8, 1)) | {"forward": Tile(32, 16, 8, 1)}


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    return not hasattr(line_kernel, "cache_key")


@lru_cache
def _device(device: torch.device) -> Device:
    if is_interpreted():
        return Device("interpreter")
    properties = torch.cuda.get_device_properties(device)
    count, capability = properties.multi_processor_count, 10 * properties.major + properties.minor
    is_hip = torch.version.hip is not None
    return Device("hip", 0, count) if is_hip else Device("cuda", capability, count)


class Plan:
    """A call as the kernels read it."""

    def __init__(
        self, call: AttentionCall, device: Device | None = None, tau_gradient: bool = False
    ) -> None:
        self.call = call
        self.tau_gradient = tau_gradient
        self.device = _device(call.query.device) if device is None else device
        self.query, self.key, self.value = (
            rows_in_order(tensor) for tensor in (call.query, call.key, call.value)
        )
        self.batch, self.heads, self.query_length, self.head_dim = call.query.shape
        _, self.key_heads, self.key_length, self.value_dim = call.value.shape
        visibility = call.visibility
        hides = visibility.key_mask is not None or visibility.key_documents is not None
        self.by_lists = self.has_positions or hides or visibility.sinks > 0

    @property
    def has_positions(self) -> bool:
        """Whether positions are explicit, and not consecutive by default."""
        return self.call.visibility.query_positions is not None

    @property
    def affine_kind(self) -> str:
        """Where kernels get gain and bias: see `affine` in _triton_tiles.py."""
        if self.call.tau is None:
            return "table" if self.has_positions else "line"
        size, itemsize = max(self.blocks), self.query.element_size()
        if self.has_positions or self.device.computes_transform(size, itemsize):
            return "tau"
        return "line"

    @property
    def blocks(self) -> tuple[int, int]:
        """The padded sizes of query and value heads."""
        return _padded(self.head_dim), _padded(self.value_dim)

    def tile(self, kernel: str) -> Tile:
        """The tile of a kernel."""
        tile = self.device.tile(kernel, max(self.blocks), self.query.element_size())
        crowded = self.has_positions or self.call.visibility.sinks > 0
        return LESS_CROWDED.get(tile, tile) if crowded else tile

    @property
    def is_wide(self) -> bool:
        """Whether heads are larger than 128."""
        return max(self.blocks) > 128

    @cached_property
    def reach(self) -> tuple[int, int, int]:
        """Lowest offset on the line as a positive number, size of the line, and known distances."""
        visibility = self.call.visibility
        if self.affine_kind != "line":
            length = 1 if self.call.gain is None else self.call.gain.shape[1]
            return 0, length, length
        window = FAR if visibility.window is None or visibility.sinks > 0 else visibility.window
        below = 0 if visibility.is_causal else min(self.query_length, window)
        above = min(self.key_length, window)
        known = above + below if self.call.gain is None else self.call.gain.shape[1]
        return below + MARGIN, below + above + 2 * MARGIN, known

    @cached_property
    def lines(self) -> tuple[Tensor | None, Tensor | None]:
        """Gain and bias by offset, interleaved, and for its gradient their derivatives by tau."""
        if self.affine_kind == "tau":
            return None, None
        call, (origin, size, length) = self.call, self.reach
        tables = [t for t in (call.gain, call.bias, call.tau) if t is not None]
        rows = max(table.shape[0] for table in tables)
        line = self.empty(rows, size, 2)
        slopes = self.empty(rows, size, 2) if self.tau_gradient else None
        gain, bias, tau = (
            None if t is None else t.detach().contiguous() for t in (call.gain, call.bias, call.tau)
        )
        high = c_float(call.scale).value
        self.launch(
            line_kernel,
            (triton.cdiv(size, 256), rows),
            line=line,
            slope_line=slopes,
            taus=None if tau is None else tau.double(),
            gains=gain,
            biases=bias,
            tau_row=row_stride(tau),
            gain_row=row_stride(gain),
            bias_row=row_stride(bias),
            size=size,
            length=length,
            origin=origin,
            scale_high=high,
            scale_low=call.scale - high,
            BLOCK=256,
            TAU=tau is not None,
            CAUSAL=call.visibility.is_causal,
            SLOPES=slopes is not None,
        )
        return line, slopes

    @cached_property
    def affine(self) -> dict[str, Any]:
        """The arguments of gain and bias that all kernels share."""
        line, _ = self.lines
        origin, _, length = self.reach
        tau = None
        if self.affine_kind == "tau":
            assert self.call.tau is not None
            # A larger tau would vanish when inverted.
            tau = self.call.tau.detach().float().clamp_max(1e28).contiguous()
        # The derivative by tau divides by the gain, whose square must not vanish.
        scale = self.call.scale if tau is None else max(abs(self.call.scale), 1e-18)
        return {
            "line": line,
            "taus": tau,
            "line_row": 0 if line is None or line.shape[0] == 1 else line.shape[1],
            "origin": origin,
            "length": length,
            "tau_row": row_stride(tau),
            "unit": scale * log2(e),
            # Of the queries: the gain of "tau" is positive, whatever the scale.
            "sign": 1.0 if tau is None else float((self.call.scale > 0) - (self.call.scale < 0)),
            "AFFINE": self.affine_kind,
        }

    @cached_property
    def unit(self) -> int:
        """Elements per unit of a stride."""
        strided = (self.query, self.key, self.value)
        strides = [stride for tensor in strided for stride in tensor.stride()[:3]]
        # Gradients are dense, so their strides are multiples of the head sizes.
        sizes = (self.head_dim, self.value_dim)
        return ALIGNED if all(number % ALIGNED == 0 for number in (*strides, *sizes)) else 1

    def strides(self, name: str, tensor: Tensor) -> dict[str, int]:
        """Strides of a tensor ``[B, H, L, D]`` in units."""
        named = zip(("batch", "head", "row"), tensor.stride(), strict=False)
        return {f"{name}_{dim}": stride // self.unit for dim, stride in named}

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Query, key and value with their strides and sizes."""
        block, value_block = self.blocks
        return {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            **self.strides("query", self.query),
            **self.strides("key", self.key),
            **self.strides("value", self.value),
            "group": self.call.group,
            "query_length": self.query_length,
            "key_length": self.key_length,
            "D": self.head_dim,
            "DV": self.value_dim,
            "BLOCK_D": block,
            "BLOCK_DV": value_block,
            "UNIT": self.unit,
        }

    @cached_property
    def numerics(self) -> dict[str, Any]:
        """How products and table lookups are computed."""
        narrow = self.query.dtype != torch.float32
        # TF32 came with Ampere; only NVIDIA devices have a capability.
        tf32 = not narrow and self.device.capability >= 80 and allows_tf32()
        return {
            "PTX": self.device.kind == "cuda",
            "PRECISION": "tf32" if tf32 else "ieee",
            "WIDE": self.device.kind == "interpreter" and self.query.dtype == torch.bfloat16,
        }

    @cached_property
    def seen(self) -> dict[str, Any]:
        """The arguments that decide visibility."""
        visibility = self.call.visibility
        found: dict[str, Any] = {}
        for name in ("query_positions", "key_positions", "query_documents", "key_documents"):
            tensor = getattr(visibility, name)
            tensor = None if tensor is None else tensor.contiguous()
            found |= {name: tensor, f"{name}_row": row_stride(tensor)}
        mask = visibility.key_mask
        mask = None if mask is None else mask.contiguous().view(torch.uint8)
        limit = 2**62 if self.has_positions else FAR
        return found | {
            "key_mask": mask,
            "key_mask_row": row_stride(mask),
            "window": min(visibility.window or 0, limit),
            "sinks": min(visibility.sinks, limit),
            "CAUSAL": visibility.is_causal,
            "WINDOW": visibility.window is not None,
            "SINKS": visibility.sinks > 0,
            "POSITIONS": self.has_positions,
            "DOCUMENTS": visibility.key_documents is not None,
            "KEY_MASK": mask is not None,
        }

    def lists(self, tile: Tile, by_key: bool = False) -> dict[str, Any]:
        """The visible blocks of every block, full ones first, with the counts of full and all.

        Key blocks by query block or, `by_key`, the reverse.
        """
        if not self.by_lists:
            return {"counts": None, "blocks": None, "block_row": 0, "LISTS": False}
        visibility = self.call.visibility_with_positions()
        block_map = BlockMap(visibility, tile.queries, tile.keys)
        some, full = block_map.every()
        shape = (
            visibility.rows,
            triton.cdiv(self.query_length, tile.queries),
            triton.cdiv(self.key_length, tile.keys),
        )
        some, full = some.expand(shape), full.expand(shape).clone()
        # The last block may be cut short: only the mask knows.
        ends = (self.query_length % tile.queries, self.key_length % tile.keys)
        if visibility.sinks > 0:
            # Only masked tiles know sinks.
            full &= (block_map.key_low >= visibility.sinks).unsqueeze(-2)
        if ends[0] and by_key:
            full[:, -1] = False
        if ends[1] and not by_key:
            full[:, :, -1] = False
        if by_key:
            some, full = some.mT, full.mT
        order = torch.argsort(some.int() + full.int(), dim=-1, descending=True, stable=True)
        counts = torch.stack([full.sum(-1), some.sum(-1)], -1)
        return {
            "counts": counts.int().contiguous(),
            "blocks": order.int().contiguous(),
            "block_row": 0 if shape[0] == 1 else some.shape[1],
            "LISTS": True,
        }

    def worst(self, numbers: Tensor) -> Tensor:
        """Largest of the last dimension, NaN or infinite where tiles must be masked with care."""
        worst, bias, key_bias = numbers.amax(-1), self.call.bias, self.call.key_bias
        # A bias of -inf hides distances, or keys of a query head.
        if bias is not None:
            worst = worst - bias.detach().amin()
        if key_bias is None:
            return worst
        return worst.repeat_interleave(self.heads // worst.shape[1], 1) - key_bias.detach().amin(-1)

    def empty(self, *shape: int) -> Tensor:
        """Memory for float32 results."""
        return torch.empty(shape, dtype=torch.float32, device=self.call.query.device)

    def launch(self, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        """Run a kernel."""
        device = self.call.query.device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[grid](**arguments)

    def select(self, kernel: Any, *given: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The arguments that a kernel takes, out of all."""
        merged: dict[str, Any] = {}
        for arguments in given:
            merged |= arguments
        merged |= more
        names = set(kernel.arg_names) | {"num_warps", "num_stages"}
        return {name: value for name, value in merged.items() if name in names}


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def rows_in_order(tensor: Tensor) -> Tensor:
    """The tensor, copied if its columns are not contiguous, or its rows too far apart."""
    is_near = tensor.stride(2) < FARTHEST_ROW
    return tensor if tensor.stride(3) == 1 and is_near else tensor.contiguous()


def row_stride(tensor: Tensor | None) -> int:
    """Elements from one row of a batch to the next; 0 if they share one."""
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor.stride(0)
