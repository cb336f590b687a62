"""The tiled backend: tiles of any size, empty ones skipped, memory linear in length."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility, tiled
from scale_invariant_attention.attention.contract import checked_call


class Watch(TorchDispatchMode):
    """Counts the multiplications of matrix products and keeps the largest tensor ever made."""

    def __init__(self):
        super().__init__()
        self.products = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.bmm.out, torch.ops.aten.baddbmm.out):
            left, right = args[-2:]
            self.products += left.numel() * right.shape[-1]
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


def watch(queries, keys, heads=2, size=8, tile=None, backward=False, **settings):
    query = torch.randn(1, heads, queries, size)
    key = torch.randn(1, heads, keys, size)
    call = checked_call(query, key, key, affine=None, tau=10.0, visibility=Visibility(**settings))
    tile = tile or tiled.TileSize(32, 32, 32 * 32 * heads)
    with Watch() as seen:
        out, lse = tiled.forward(call, tile)
        if backward:
            tiled.backward(call, out, lse, torch.ones_like(out), torch.zeros_like(lse), True, tile)
    return seen


def work(tiles, heads=2, size=8):
    """Multiplications of the two products of that many forward tiles of 32 by 32."""
    return tiles * 2 * heads * 32 * 32 * size


def test_the_counter_counts():
    assert watch(512, 512, is_causal=False).products == work(16 * 16)


def test_tiles_above_the_diagonal_are_skipped():
    assert watch(512, 512).products == work(16 * 17 / 2)


def test_tiles_beyond_the_window_are_skipped():
    assert watch(512, 512, window=32).products == work(16 + 15)
    # A column of tiles for the sinks.
    assert watch(512, 512, window=32, sinks=1).products == work(16 + 15 + 14)


@pytest.mark.parametrize("order", ["packed", "interleaved"])
def test_tiles_between_documents_are_skipped(order):
    documents = torch.arange(512) // 64
    if order == "interleaved":
        # Tiles of documents 0, 4, 1, 5 ...: the extremes of blocks are correct, only less precise.
        documents = (torch.arange(512) // 32) % 2
    seen = watch(512, 512, key_documents=documents, is_causal=False)
    assert seen.products == work(8 * 4 if order == "packed" else 16 * 8)


def test_tiles_of_documents_whose_extremes_overlap_are_skipped_too():
    documents = torch.tensor([0, 2]).repeat(16), torch.tensor([1, 3]).repeat(16)
    documents = torch.cat(documents * 8)
    seen = watch(512, 512, key_documents=documents, is_causal=False)
    assert seen.products == work(16 * 8)


def test_tiles_of_padding_are_skipped_row_by_row():
    query = torch.randn(2, 2, 512, 8)
    mask = torch.arange(512) >= torch.tensor([[256], [0]])
    call = checked_call(
        query, query, query, affine=None, tau=10.0, visibility=Visibility(key_mask=mask)
    )
    with Watch() as seen:
        tiled.forward(call, tiled.TileSize(32, 32, 32 * 32 * 2))
    assert seen.products == work(16 * 17 / 2) + work(8 * 9 / 2)


def test_backward_skips_what_forward_skips():
    whole = watch(512, 512, backward=True, is_causal=False).products
    assert watch(512, 512, backward=True).products == whole * 17 / 32
    assert watch(512, 512, backward=True, window=32).products == whole * 31 / 256


@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": False}, {"window": 700, "sinks": 3}], ids=str
)
@pytest.mark.parametrize("length", [1024, 4096])
def test_no_tensor_grows_with_the_square_of_the_length(length, settings):
    heads, size = 2, 8
    tile = tiled.TileSize(64, 64, 64 * 64 * heads)
    seen = watch(length, length, heads, size, tile, backward=True, **settings)
    assert seen.largest <= 4 * length * heads * size


def test_explicit_positions_documents_and_masks_keep_memory_linear_too():
    length = 4096
    documents = torch.arange(length) // 1000
    seen = watch(
        length,
        length,
        tile=tiled.TileSize(64, 64, 64 * 64 * 2),
        backward=True,
        query_positions=torch.arange(length) * 2,
        key_positions=torch.arange(length) * 2,
        key_documents=documents,
        key_mask=torch.rand(1, length) < 0.9,
    )
    assert seen.largest <= 4 * length * 2 * 8


def test_tiles_adapt_to_few_queries_and_many_heads():
    query, key = torch.empty(1, 6, 1, 8), torch.empty(1, 6, 65536, 8)
    one = tiled.TileSize.for_call(
        checked_call(query, key, key, affine=None, tau=10.0, visibility=Visibility())
    )
    assert one.keys >= 4096
    query = torch.empty(1, 64, 4096, 8)
    many = tiled.TileSize.for_call(
        checked_call(query, query, query, affine=None, tau=10.0, visibility=Visibility())
    )
    assert many.keys == 256


def test_large_logits_neither_overflow_nor_vanish():
    query, key, value = torch.randn(3, 1, 2, 300, 16, dtype=torch.float64).unbind()
    for factor in (1.0, 100.0, 10000.0):
        leaves = [t.float().requires_grad_() for t in (factor * query, key, value)]
        out = sia.scale_invariant_attention(*leaves, backend="tiled")
        exact = sia.scale_invariant_attention(
            *(t.detach().double() for t in leaves), backend="reference"
        )
        grads = torch.autograd.grad(out.sum(), leaves)
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert torch.isfinite(out).all()
        assert (out - exact).abs().max() < 1e-5 * max(factor, 1) * math.sqrt(16)
