"""Ranks that disagree, raise, die or hang: what every other rank sees, as a line of JSON each.

python tests/support/context_parallel_failures.py FOLDER SCENARIO
"""

import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from ranks_of_processes import forked

import scale_invariant_attention as sia
from scale_invariant_attention.attention import backends

SIZE, TIMEOUT, LENGTH = 3, 4, 48


def inputs(rank, heads=3, dtype=torch.float32):
    layout = sia.SequenceLayout.of_group(LENGTH)
    torch.manual_seed(0)
    whole = torch.randn(3, 1, heads, LENGTH, 8, dtype=dtype).unbind()
    parts = (sia.shard_sequence(tensor, layout, dim=2).tensor for tensor in whole)
    return [part.requires_grad_() for part in parts], {"layout": layout}


def call(rank, heads=3, dtype=torch.float32, **settings):
    tensors, given = inputs(rank, heads, dtype)
    return sia.context_parallel_attention(*tensors, **{**given, **settings})


# Arguments of rank 1 that differ from those of the others, which are valid by themselves.
DIFFERENT = {
    "method": {"method": "gather"},
    "tau": {"tau": 3.0},
    "tables": {"affine": sia.DistanceAffine.identity(100)},
    "heads": {"heads": 6},
    "dtype": {"dtype": torch.float64},
    "window": {"window": 7},
    "documents": {"key_documents": torch.zeros(16, dtype=torch.long)},
    "layout": {"layout": sia.SequenceLayout(LENGTH, SIZE, 1, "contiguous")},
    "gradients": {"tau": torch.tensor(10.0, dtype=torch.float64, requires_grad=True)},
}
# Arguments of rank 1 that are wrong.
WRONG = {
    "unknown method": {"method": "rings"},
    "layout of another rank": {"layout": sia.SequenceLayout(LENGTH, SIZE, 0)},
    "layout of another length": {"layout": sia.SequenceLayout(LENGTH + 12, SIZE, 1)},
    "no positions": {"layout": None},
    "coordinates": {"is_causal": False, "key_coordinates": torch.zeros(16, 2).long()},
    "shape": {"key_documents": torch.zeros(5, dtype=torch.long)},
    "backend without passes": {"backend": "flex"},
    "heads that ranks cannot share": {"method": "heads", "heads": 4},
    "short tables": {"affine": sia.DistanceAffine.identity(3)},
}


def disagree(rank, report):
    for name, settings in DIFFERENT.items():
        report(name, lambda settings=settings: call(rank, **settings if rank == 1 else {}))
    other = sia.SequenceLayout.of_group(LENGTH, kind="zigzag" if rank == 1 else "contiguous")
    shard = sia.SequenceShard(torch.zeros(1, 16), other)
    report("unshard", lambda: sia.unshard_sequence(shard))


def wrong(rank, report):
    for name, settings in WRONG.items():
        report(name, lambda settings=settings: call(rank, **settings if rank == 1 else {}))
    report("the next call", lambda: call(rank, method="heads"))
    # Long enough for every rank alone.
    affine = sia.DistanceAffine.identity(20)
    contiguous = sia.SequenceLayout.of_group(LENGTH, kind="contiguous")
    report("short across ranks", lambda: call(rank, affine=affine, layout=contiguous))


def raise_inside(rank, report):
    tiled = backends.BACKENDS["tiled"]

    def forward(call):
        raise MemoryError("no memory left for this test")

    if rank == 1:
        backends.BACKENDS["tiled"] = replace(tiled, forward=forward)
    report("raise_inside", lambda: call(rank, backend="tiled"))


def die_in_backward(rank, report):
    out = call(rank)
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    report("die_in_backward", lambda: out.sum().backward())


def die_at_the_store(rank, report):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    report("die_at_the_store", lambda: call(rank, method="gather"))


def hang(rank, report):
    if rank == 1:
        time.sleep(3 * TIMEOUT)
    else:
        report("hang", lambda: call(rank))


# In most scenarios the store is a file; here it is a thread of rank 0.
AT_RANK_0 = "die_at_the_store"
SCENARIOS = {
    it.__name__: it
    for it in (disagree, wrong, raise_inside, die_in_backward, die_at_the_store, hang)
}


def run(folder, scenario, port, rank):
    torch.set_num_threads(1)
    # Nothing may hang, whatever else fails.
    signal.alarm(10 * TIMEOUT)
    timeout = timedelta(seconds=TIMEOUT)
    store = f"file://{folder}/{scenario}"
    if scenario == AT_RANK_0:
        store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", store, rank=rank, world_size=SIZE, timeout=timeout)
    dist.barrier()

    def report(name, action):
        started, end = time.monotonic(), "ended"
        try:
            action()
        except Exception as error:
            end = f"{type(error).__name__}: {error}"
        line = json.dumps([name, rank, end, time.monotonic() - started])
        os.write(1, f"{line}\n".encode())

    SCENARIOS[scenario](rank, report)


if __name__ == "__main__":
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free_port = server.getsockname()[1]
    forked(SIZE, partial(run, *sys.argv[1:], free_port))
