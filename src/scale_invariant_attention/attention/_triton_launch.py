"""Host side of the Triton kernels: arguments, tile sizes, block lists, and the order of launches."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2, e
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from . import tiled
from ._opaque import Gradients
from ._tables import fold
from ._triton_backward import key_gradients_kernel, query_gradients_kernel, row_terms_kernel
from ._triton_decode import merge_kernel, split_kernel
from ._triton_forward import forward_kernel, spoil_kernel
from ._triton_tables import diagonals_kernel, line_kernel
from .contract import AttentionCall
from .visibility import BlockMap

# Offsets that a tile may reach beyond the visible pairs: the sum of its sides at most.
MARGIN = 256
# Strides are passed in units of this many elements, if they all are multiples of it: 16 bytes of a
# half-precision tensor. The kernels then know that rows are aligned, whatever the length.
ALIGNED = 8
# Rows of a key head up to which the decoding kernel runs.
DECODE_ROWS = 32
FAR = 2**30
# Rows of a block of the kernels that prepare data by row; tiles divide WHOLE.
PREPARED, WHOLE = 64, 128


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile, and how a kernel runs it."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True)
class Device:
    """What tile sizes and kernel variants depend on."""

    kind: str  # "cuda", "hip" or "interpreter"
    capability: int = 0
    processors: int = 8

    def tile(self, kernel: str, size: int, itemsize: int) -> Tile:
        """The tile of "forward", "keys" (their gradients), "queries", "diagonals" or "decode".

        `size` is the padded size of a head.
        """
        if self.kind == "interpreter":
            return Tile(16, 16) if kernel == "diagonals" else Tile(32, 32)
        if itemsize == 4 or size > 128:
            return WIDE_TILES[kernel]
        column = 0 if size <= 64 else 1
        if self.kind == "hip":
            return HIP_TILES[kernel][column]
        return (HOPPER_TILES if self.capability in (90, 100) else AMPERE_TILES)[kernel][column]


# For head sizes up to 64 and up to 128, in half precision: found by compiling for these devices and
# counting, not by running.
AMPERE_TILES = {
    "forward": (Tile(128, 64, 4, 3), Tile(128, 64, 8, 3)),
    "keys": (Tile(32, 128, 8, 2), Tile(64, 64, 8, 2)),
    "queries": (Tile(128, 64, 8, 2), Tile(128, 32, 8, 2)),
    "diagonals": (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
    "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3)),
}
HOPPER_TILES = {
    "forward": (Tile(128, 128, 8, 2), Tile(128, 128, 8, 2)),
    "keys": (Tile(64, 128, 8, 2), Tile(32, 128, 8, 2)),
    "queries": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2)),
    "diagonals": (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
    "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3)),
}
HIP_TILES = {
    "forward": (Tile(128, 64, 4, 1), Tile(128, 64, 8, 1)),
    "keys": (Tile(32, 64, 4, 1), Tile(32, 64, 8, 1)),
    "queries": (Tile(64, 32, 4, 1), Tile(64, 32, 8, 1)),
    "diagonals": (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
    "decode": (Tile(16, 64, 4, 1), Tile(16, 64, 4, 1)),
}
# For float32, and for larger heads.
WIDE_TILES = {
    "forward": Tile(64, 32, 8, 2),
    "keys": Tile(32, 32, 8, 1),
    "queries": Tile(32, 32, 8, 1),
    "diagonals": Tile(32, 32, 8, 1),
    "decode": Tile(16, 32, 4, 2),
}


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    return not hasattr(forward_kernel, "cache_key")


@lru_cache
def _device(device: torch.device) -> Device:
    if is_interpreted():
        return Device("interpreter")
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return Device("hip", 0, properties.multi_processor_count)
    return Device(
        "cuda", 10 * properties.major + properties.minor, properties.multi_processor_count
    )


def _allows_tf32() -> bool:
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")


class Plan:
    """A call as the kernels read it."""

    def __init__(self, call: AttentionCall, device: Device | None = None) -> None:
        self.call = call
        self.device = _device(call.query.device) if device is None else device
        self.query, self.key, self.value = (
            _with_rows(tensor) for tensor in (call.query, call.key, call.value)
        )
        self.batch, self.heads, self.query_length, self.head_dim = call.query.shape
        _, self.key_heads, self.key_length, self.value_dim = call.value.shape
        visibility = call.visibility
        self.by_lists = self.has_positions or any(
            part is not None for part in (visibility.key_mask, visibility.key_documents)
        )
        self.by_lists = self.by_lists or visibility.sinks > 0

    @property
    def has_positions(self) -> bool:
        """Whether positions are explicit, and not consecutive by default."""
        return self.call.visibility.query_positions is not None

    @property
    def affine_kind(self) -> str:
        """Where kernels get gain and bias: see `affine` in _triton_tiles.py."""
        if not self.has_positions:
            return "line"
        return "table" if self.call.tau is None else "tau"

    @property
    def blocks(self) -> tuple[int, int]:
        """The padded sizes of query and value heads."""
        return _padded(self.head_dim), _padded(self.value_dim)

    def tile(self, kernel: str) -> Tile:
        """The tile of a kernel."""
        return self.device.tile(kernel, max(self.blocks), self.query.element_size())

    @cached_property
    def reach(self) -> tuple[int, int, int]:
        """Lowest offset on the line as a positive number, size of the line, and known distances."""
        visibility = self.call.visibility
        if self.has_positions:
            length = 1 if self.call.gain is None else self.call.gain.shape[1]
            return 0, length, length
        window = FAR if visibility.window is None or visibility.sinks > 0 else visibility.window
        below = 0 if visibility.is_causal else min(self.query_length, window)
        above = min(self.key_length, window)
        known = above + below if self.call.gain is None else self.call.gain.shape[1]
        return below + MARGIN, below + above + 2 * MARGIN, known

    @cached_property
    def lines(self) -> tuple[Tensor | None, Tensor | None]:
        """Gain and bias by offset, interleaved, and their derivatives by tau."""
        if self.affine_kind == "tau":
            return None, None
        call, (origin, size, length) = self.call, self.reach
        tables = [t for t in (call.gain, call.bias, call.tau) if t is not None]
        rows = max(table.shape[0] for table in tables)
        line = self.empty(rows, size, 2)
        slopes = None if call.tau is None else self.empty(rows, size, 2)
        gain, bias, tau = (
            None if t is None else t.detach().contiguous() for t in (call.gain, call.bias, call.tau)
        )
        high = torch.tensor(call.scale, dtype=torch.float32, device="cpu").item()
        self.launch(
            line_kernel,
            (triton.cdiv(size, 256), rows),
            line=line,
            slope_line=slopes,
            taus=None if tau is None else tau.double(),
            gains=gain,
            biases=bias,
            tau_row=_row_stride(tau),
            gain_row=_row_stride(gain),
            bias_row=_row_stride(bias),
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
            # A smaller tau would overflow a distance divided by it.
            tau = self.call.tau.detach().float().clamp(1e-28, 1e28).contiguous()
        scale = self.call.scale if tau is None else abs(self.call.scale)
        return {
            "line": line,
            "taus": tau,
            "line_row": 0 if line is None or line.shape[0] == 1 else line.shape[1],
            "origin": origin,
            "length": length,
            "tau_row": _row_stride(tau),
            "unit": scale * log2(e),
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
        tf32 = not narrow and self.device.kind == "cuda" and _allows_tf32()
        return {
            "PTX": self.device.kind == "cuda",
            "PRECISION": "tf32" if tf32 else "ieee",
            "WIDE": self.device.kind == "interpreter" and narrow,
        }

    @cached_property
    def seen(self) -> dict[str, Any]:
        """The arguments that decide visibility."""
        visibility = self.call.visibility
        found: dict[str, Any] = {}
        for name in ("query_positions", "key_positions", "query_documents", "key_documents"):
            tensor = getattr(visibility, name)
            tensor = None if tensor is None else tensor.contiguous()
            found |= {name: tensor, f"{name}_row": _row_stride(tensor)}
        mask = visibility.key_mask
        mask = None if mask is None else mask.contiguous().view(torch.uint8)
        limit = 2**62 if self.has_positions else FAR
        return found | {
            "key_mask": mask,
            "key_mask_row": _row_stride(mask),
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
        some, full = BlockMap(visibility, tile.queries, tile.keys).every()
        shape = (
            visibility.rows,
            triton.cdiv(self.query_length, tile.queries),
            triton.cdiv(self.key_length, tile.keys),
        )
        some, full = some.expand(shape), full.expand(shape)
        # The last block may be cut short: only the mask knows.
        ends = (self.query_length % tile.queries, self.key_length % tile.keys)
        full = full.clone()
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
        worst = numbers.amax(-1)
        # A bias of -inf hides distances.
        return worst if self.call.bias is None else worst - self.call.bias.detach().amin()

    def empty(self, *shape: int) -> Tensor:
        """Memory for float32 results."""
        return torch.empty(shape, dtype=torch.float32, device=self.call.query.device)

    def launch(self, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        """Run a kernel."""
        with self._on_device():
            kernel[grid](**arguments)

    def _on_device(self) -> AbstractContextManager[object]:
        device = self.call.query.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def select(self, kernel: Any, *given: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Those of the arguments that a kernel takes."""
        merged: dict[str, Any] = {}
        for arguments in given:
            merged |= arguments
        merged |= more
        names = set(kernel.arg_names) | {"num_warps", "num_stages"}
        return {name: value for name, value in merged.items() if name in names}


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a call that is not empty."""
    plan = Plan(call)
    few = plan.query_length * call.group <= DECODE_ROWS
    return _decode(plan) if few else _forward(plan)


def _forward(plan: Plan) -> tuple[Tensor, Tensor]:
    tile = plan.tile("forward")
    out = plan.empty(plan.batch, plan.heads, plan.query_length, plan.value_dim)
    lse = plan.empty(plan.batch, plan.heads, plan.query_length)
    padded = _whole_blocks(plan.key_length)
    spoil = plan.empty(plan.batch, plan.key_heads, padded)
    plan.launch(
        spoil_kernel,
        (padded // PREPARED, plan.batch * plan.key_heads),
        **plan.select(
            spoil_kernel,
            plan.inputs,
            spoil=spoil,
            heads=plan.key_heads,
            length=plan.key_length,
            padded=padded,
            BLOCK=PREPARED,
        ),
    )
    query_blocks = triton.cdiv(plan.query_length, tile.queries)
    plan.launch(
        forward_kernel,
        (query_blocks, plan.batch * plan.heads),
        **plan.select(
            forward_kernel,
            plan.inputs,
            plan.affine,
            plan.numerics,
            plan.seen,
            plan.lists(tile),
            out=out,
            lse=lse,
            spoil=spoil,
            spoil_row=padded,
            worst=plan.worst(spoil),
            heads=plan.heads,
            query_blocks=query_blocks,
            key_blocks=triton.cdiv(plan.key_length, tile.keys),
            sign=_sign(plan),
            AFFINE=plan.affine_kind,
            BLOCK_M=tile.queries,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    return out, lse


def _decode(plan: Plan) -> tuple[Tensor, Tensor]:
    tile = plan.tile("decode")
    rows = plan.query_length * plan.call.group
    first = 0
    window, sinks = plan.call.visibility.window, plan.call.visibility.sinks
    if window is not None and sinks == 0 and not plan.has_positions:
        # No query sees a key before this one.
        first = max(plan.key_length - plan.query_length - window + 1, 0)
        first = min(first, plan.key_length - 1)
    keys = plan.key_length - first
    wanted = triton.cdiv(2 * plan.device.processors, plan.batch * plan.key_heads)
    split = triton.cdiv(triton.cdiv(keys, wanted), tile.keys) * tile.keys
    count = triton.cdiv(keys, split)
    parts = plan.empty(plan.batch, plan.heads, plan.query_length, count, plan.value_dim)
    part_lse = plan.empty(plan.batch, plan.heads, plan.query_length, count)
    plan.launch(
        split_kernel,
        (count, plan.batch * plan.key_heads),
        **plan.select(
            split_kernel,
            plan.inputs,
            plan.affine,
            plan.numerics,
            plan.seen,
            parts=parts,
            part_lse=part_lse,
            key_heads=plan.key_heads,
            first_key=first,
            split=split,
            sign=_sign(plan),
            AFFINE=plan.affine_kind,
            ROWS=max(16, triton.next_power_of_2(rows)),
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    out = plan.empty(plan.batch, plan.heads, plan.query_length, plan.value_dim)
    lse = plan.empty(plan.batch, plan.heads, plan.query_length)
    plan.launch(
        merge_kernel,
        (plan.batch * plan.heads * plan.query_length,),
        parts=parts,
        part_lse=part_lse,
        out=out,
        lse=lse,
        count=count,
        DV=plan.value_dim,
        BLOCK_DV=plan.blocks[1],
        BLOCK=16,
    )
    return out, lse


def backward(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
) -> Gradients:
    """Gradients of a call that is not empty."""
    plan = Plan(call)
    if affine_grads and plan.affine_kind == "table":
        # Distances are scattered over the tiles: no program owns those of a table's entry.
        return tiled.backward(call, out, lse, grad_out, grad_lse, affine_grads)
    grad_out = _with_rows(grad_out.to(call.query.dtype))
    if any(stride % plan.unit for stride in grad_out.stride()[:3]):
        grad_out = grad_out.contiguous()
    bases, deltas = _row_terms(plan, out.contiguous(), lse.contiguous(), grad_out, grad_lse)
    shared: dict[str, Any] = {
        **plan.inputs,
        **plan.affine,
        **plan.numerics,
        **plan.seen,
        **plan.strides("grad", grad_out),
        "AFFINE": plan.affine_kind,
        "grad_out": grad_out,
        "bases": bases,
        "deltas": deltas,
        "padded": bases.shape[2],
        "worst": plan.worst(lse),
        "sign": _sign(plan),
        "heads": plan.heads,
        "key_heads": plan.key_heads,
    }
    grad_key, grad_value = _key_gradients(plan, shared)
    tau_grads = affine_grads and call.tau is not None
    grad_query, grad_tau = _query_gradients(plan, shared, tau_grads)
    gain = bias = None
    if affine_grads and call.tau is None:
        gain, bias = _table_gradients(plan, shared)
    return Gradients(grad_query, grad_key, grad_value, gain, bias, grad_tau)


def _row_terms(
    plan: Plan, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor
) -> tuple[Tensor, Tensor]:
    padded = _whole_blocks(plan.query_length)
    bases = plan.empty(plan.batch, plan.heads, padded)
    deltas = plan.empty(plan.batch, plan.heads, padded)
    batch, head, row = grad_lse.stride()
    plan.launch(
        row_terms_kernel,
        (padded // PREPARED, plan.batch * plan.heads),
        out=out,
        lse=lse,
        grad_out=grad_out,
        grad_lse=grad_lse,
        bases=bases,
        deltas=deltas,
        **plan.strides("grad", grad_out),
        grad_lse_batch=batch,
        grad_lse_head=head,
        grad_lse_row=row,
        heads=plan.heads,
        query_length=plan.query_length,
        padded=padded,
        DV=plan.value_dim,
        BLOCK_DV=plan.blocks[1],
        BLOCK=PREPARED,
        UNIT=plan.unit,
    )
    return bases, deltas


def _key_gradients(plan: Plan, shared: dict[str, Any]) -> tuple[Tensor, Tensor]:
    tile = plan.tile("keys")
    grad_key, store_key = _writable(plan.call.key)
    grad_value, store_value = _writable(plan.call.value)
    plan.launch(
        key_gradients_kernel,
        (triton.cdiv(plan.key_length, tile.keys), plan.batch * plan.key_heads),
        **plan.select(
            key_gradients_kernel,
            shared,
            plan.lists(tile, by_key=True),
            plan.strides("grad_key", grad_key),
            plan.strides("grad_value", grad_value),
            grad_key=grad_key,
            grad_value=grad_value,
            query_blocks=triton.cdiv(plan.query_length, tile.queries),
            BLOCK_M=tile.queries,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    return store_key(), store_value()


def _query_gradients(
    plan: Plan, shared: dict[str, Any], tau_grads: bool
) -> tuple[Tensor, Tensor | None]:
    tile = plan.tile("queries")
    grad_query, store = _writable(plan.call.query)
    query_blocks = triton.cdiv(plan.query_length, tile.queries)
    grad_taus = plan.empty(plan.batch, plan.heads, query_blocks) if tau_grads else None
    plan.launch(
        query_gradients_kernel,
        (query_blocks, plan.batch * plan.heads),
        **plan.select(
            query_gradients_kernel,
            shared,
            plan.lists(tile),
            plan.strides("grad_query", grad_query),
            grad_query=grad_query,
            grad_taus=grad_taus,
            slope_line=plan.lines[1] if tau_grads else None,
            query_blocks=query_blocks,
            key_blocks=triton.cdiv(plan.key_length, tile.keys),
            TAU_GRADIENT=tau_grads,
            BLOCK_M=tile.queries,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    tau = plan.call.tau
    if grad_taus is None or tau is None:
        return store(), None
    return store(), fold(grad_taus.double().sum((0, 2)), tau).to(tau.dtype)


def _table_gradients(plan: Plan, shared: dict[str, Any]) -> tuple[Tensor, Tensor]:
    tile, visibility = plan.tile("diagonals"), plan.call.visibility
    block = tile.queries
    window = FAR if visibility.window is None else visibility.window
    highest = min(plan.key_length, window) - 1
    lowest = 0 if visibility.is_causal else -(min(plan.query_length, window) - 1)
    first = lowest // block
    count = highest // block + 2 - first
    # For gain and bias: offsets below and from the corner of each diagonal of tiles.
    sums = plan.empty(plan.heads, count, 2, 2, block)
    plan.launch(
        diagonals_kernel,
        (count, plan.heads),
        **plan.select(
            diagonals_kernel,
            shared,
            sums=sums,
            first_diagonal=first,
            batch=plan.batch,
            scale=plan.call.scale,
            BLOCK=block,
            num_warps=tile.warps,
            num_stages=tile.stages,
        ),
    )
    below, above = sums.double().permute(3, 0, 2, 1, 4)
    by_offset = F.pad(below, (0, 0, 0, 1)) + F.pad(above, (0, 0, 1, 0))
    by_offset = by_offset.flatten(2)  # [heads, 2, offsets from (first - 1) * block]
    zero = (1 - first) * block
    by_distance = by_offset[:, :, zero:]
    if not visibility.is_causal:
        mirrored = by_offset[:, :, :zero].flip(-1)
        length = max(by_distance.shape[2], mirrored.shape[2] + 1)
        by_distance = F.pad(by_distance, (0, length - by_distance.shape[2]))
        mirrored = F.pad(mirrored, (1, length - mirrored.shape[2] - 1))
        by_distance = by_distance + mirrored
    gain, bias = plan.call.gain, plan.call.bias
    assert gain is not None
    assert bias is not None
    # Distances beyond the tables have no visible pair.
    length = gain.shape[1]
    by_distance = F.pad(by_distance, (0, max(0, length - by_distance.shape[2])))[:, :, :length]
    return tuple(
        fold(by_distance[:, index], table).to(table.dtype)
        for index, table in enumerate((gain, bias))
    )  # type: ignore[return-value]


def _sign(plan: Plan) -> float:
    """Sign of the queries: the gain of "tau" is positive, whatever the scale."""
    return -1.0 if plan.affine_kind == "tau" and plan.call.scale < 0 else 1.0


def _padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def _whole_blocks(length: int) -> int:
    return triton.cdiv(length, WHOLE) * WHOLE


def _with_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied if its columns are not contiguous."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _row_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.shape[0] == 1 else tensor.stride(0)


def _writable(tensor: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Memory for the gradient of a tensor, and a function that returns it in the tensor's layout."""
    result = torch.empty_like(tensor)
    if result.stride(3) == 1:
        return result, lambda: result
    written = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return written, lambda: result.copy_(written)
