"""Round trips, bytes sent, subgroups and recomputation in two or three processes: asserts, or raises.

python tests/support/context_parallel_counts.py FOLDER
"""

import sys
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from ranks_of_processes import forked
from torch.utils.checkpoint import checkpoint

import scale_invariant_attention as sia

SIZE = 3


def round_trips(rank):
    """Every kind, lengths that do not divide, any dimension; gradients are sums over ranks."""
    for kind in ("zigzag", "contiguous"):
        for length in (0, 1, 2, 5, 6, 7, 12, 31):
            layout = sia.SequenceLayout.of_group(length, kind=kind)
            for dim, dtype in ((0, torch.int64), (1, torch.bool), (-1, torch.bfloat16)):
                shape = [2, 3, 4]
                shape[dim] = length
                whole = torch.randint(0, 2, shape).to(dtype)
                dist.broadcast(whole, 0)
                shard = sia.shard_sequence(whole, layout, dim)
                assert torch.equal(sia.unshard_sequence(shard), whole)
        layout = sia.SequenceLayout.of_group(11, kind=kind)
        local = torch.ones(2, layout.local_length, requires_grad=True)
        whole = sia.unshard_sequence(sia.SequenceShard(local, layout))
        weights = torch.arange(11.0)
        (whole * weights * (rank + 1)).sum().backward()
        assert torch.equal(local.grad, (6 * weights[layout.positions()]).expand(2, -1))


class Counter:
    """Counts the bytes that this rank hands to torch.distributed for other ranks."""

    def __init__(self):
        self.bytes = 0
        self.all_to_all, self.all_gather = dist.all_to_all_single, dist.all_gather_single

    def __enter__(self):
        dist.all_to_all_single, dist.all_gather_single = self.count_exchange, self.count_gather
        return self

    def __exit__(self, *_):
        dist.all_to_all_single, dist.all_gather_single = self.all_to_all, self.all_gather

    def count_exchange(self, received, sent, sizes, lengths, **settings):
        others = [length for rank, length in enumerate(lengths) if rank != dist.get_rank()]
        self.bytes += sum(others) * sent.itemsize
        return self.all_to_all(received, sent, sizes, lengths, **settings)

    def count_gather(self, everything, sent, **settings):
        self.bytes += sent.nbytes * (SIZE - 1)
        return self.all_gather(everything, sent, **settings)


def bytes_sent(rank):
    """The formulas of docs/context-parallel.md; lengths are such that nothing is filled up."""
    batch, heads, key_heads, tokens, depth, width, n = 2, 6, 3, 96, 16, 32, SIZE
    layout = sia.SequenceLayout.of_group(n * tokens)
    agreement = 32 * (n - 1)
    for dtype, item in ((torch.float32, 4), (torch.bfloat16, 2)):
        query = torch.randn(batch, heads, tokens, depth, dtype=dtype, requires_grad=True)
        key = torch.randn(batch, key_heads, tokens, depth, dtype=dtype, requires_grad=True)
        value = torch.randn(batch, key_heads, tokens, width, dtype=dtype, requires_grad=True)
        numbers = batch * key_heads * (depth + width)
        keys = tokens * (numbers * item + 8)
        grads = tokens * numbers * 4
        own = batch * (heads // n) * tokens
        shared = batch * (key_heads // n) * tokens * (depth + width)
        expected = {
            "ring": ((n - 1) * keys, (n - 1) * keys + n * grads),
            "gather": ((n - 1) * keys, (n - 1) * keys + (n - 1) * grads),
            "heads": (
                (n - 1) * (own * depth * item + shared * item + own * (width * item + 4)),
                (n - 1) * (own * (width * item + 4) + own * depth * item + shared * item),
            ),
        }
        for method, (forward, backward) in expected.items():
            with Counter() as counter:
                out = sia.context_parallel_attention(
                    query, key, value, layout=layout, method=method
                )
            assert counter.bytes == forward + agreement, (method, dtype, counter.bytes, forward)
            with Counter() as counter:
                out.sum().backward()
            assert counter.bytes == backward, (method, dtype, counter.bytes, backward)


def subgroups(rank):
    """A group of some ranks; a group of one; recomputation in backward; the same bits every time."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 4, 50, 16).unbind()
    whole = sia.scale_invariant_attention(query, key, value, tau=3.0)
    pair, alone = dist.new_group([0, 2]), [dist.new_group([it]) for it in range(SIZE)][rank]
    for group, members in ((pair, (0, 2)), (alone, (rank,))):
        if rank not in members:
            continue
        layout = sia.SequenceLayout.of_group(50, group)
        local = [sia.shard_sequence(t, layout, 2).tensor for t in (query, key, value)]
        for method in ("ring", "gather", "heads"):
            settings = {"layout": layout, "group": group, "method": method, "tau": 3.0}
            out = sia.context_parallel_attention(*local, **settings)
            mine = sia.shard_sequence(whole, layout, 2).tensor
            torch.testing.assert_close(out, mine)
            leaves = [it.clone().requires_grad_() for it in local]
            attention = partial(sia.context_parallel_attention, **settings)
            grads = [
                torch.autograd.grad(run(*leaves).square().sum(), leaves)
                for run in (attention, partial(checkpoint, attention, use_reentrant=False))
            ]
            for first, second in zip(*grads, strict=True):
                assert torch.equal(first, second)


def compiled(rank):
    """A compiled function around the call gives the same, with gradients."""
    layout = sia.SequenceLayout.of_group(30)
    weight = torch.eye(8, requires_grad=True)
    inputs = torch.randn(1, 2, layout.local_length, 8)

    def function(x):
        x = torch.sin(x @ weight)
        return torch.cos(sia.context_parallel_attention(x, x, x, layout=layout)).sum()

    plain, traced = (
        torch.autograd.grad(run(inputs), weight)[0]
        for run in (function, torch.compile(function, backend="aot_eager"))
    )
    torch.testing.assert_close(traced, plain)


def run(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=SIZE, timeout=timedelta(seconds=60)
    )
    for scenario in (round_trips, bytes_sent, subgroups, compiled):
        scenario(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(any(forked(SIZE, partial(run, sys.argv[1]))))
