"""Random contracts cut over several processes, judged like those of one process.

    python tests/support/context_parallel_contracts.py 1000000 300 --ranks 2 3 4

Every contract draws a method, a layout or an arbitrary cut, and a backend. The processes of a group are
started once, and run one contract after the other; they take turns in judging.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from contract_checks import call_of, leaks, poisoned
from error_budgets import Judge, Results
from random_contracts import Contract, draw
from ranks_of_processes import forked
from torch import Tensor

import scale_invariant_attention as sia
from scale_invariant_attention.attention.context_parallel import _ring
from scale_invariant_attention.attention.context_parallel.api import METHODS

OF_QUERIES = ("query_positions", "query_documents")
OF_KEYS = ("key_positions", "key_documents", "key_mask")


@dataclass
class Cut:
    """The indices of the queries and of the keys that each rank holds."""

    queries: list[Tensor]
    keys: list[Tensor]
    layouts: list[sia.SequenceLayout] | None
    name: str


def draw_cut(rng: random.Random, contract: Contract, size: int) -> Cut:
    queries, keys = contract.query.shape[2], contract.key.shape[2]
    if queries == keys and rng.random() < 0.8:
        kind = rng.choice(("zigzag", "zigzag", "contiguous"))
        layouts = [sia.SequenceLayout(keys, size, rank, kind) for rank in range(size)]
        indices = [layout.positions() for layout in layouts]
        return Cut(indices, indices, layouts, kind)
    generator = torch.Generator().manual_seed(rng.randrange(2**40))

    def ends(length: int) -> list[Tensor]:
        stops = sorted(rng.randint(0, length) for _ in range(size - 1))
        return list(torch.arange(length).tensor_split(stops))

    def scattered(length: int) -> list[Tensor]:
        owners = torch.randint(0, size, (length,), generator=generator)
        return [(owners == rank).nonzero().flatten() for rank in range(size)]

    cut = rng.choice((ends, scattered))
    return Cut(cut(queries), cut(keys), None, cut.__name__)


def widened(contract: Contract, times: int) -> Contract:
    """The contract with more heads, for methods that need a number divisible by that of the ranks."""

    def wide(tensor: Tensor, dim: int) -> Tensor:
        return torch.cat([tensor.roll(i, -1) for i in range(times)], dim)

    def of_heads(name: str, tensor: Tensor) -> Tensor:
        if name == "key_bias":
            return wide(tensor, 1) if tensor.shape[1] > 1 else tensor
        return wide(tensor, 0) if tensor.ndim == (1 if name == "tau" else 2) else tensor

    learned = {name: of_heads(name, tensor) for name, tensor in contract.learned.items()}
    tensors = {
        name: wide(getattr(contract, name), 1)
        for name in ("query", "key", "value", "grad_out", "grad_lse")
    }
    return replace(contract, learned=learned, **tensors)


def local_results(
    contract: Contract,
    cut: Cut,
    rank: int,
    method: str,
    backend: str,
    inputs: dict[str, Tensor] | None = None,
    grad_out: Tensor | None = None,
) -> Results:
    """Results of this rank's part."""
    queries, keys = cut.queries[rank], cut.keys[rank]
    whole = inputs or contract.inputs
    held = {
        "query": whole["query"][:, :, queries],
        "key": whole["key"][:, :, keys],
        "value": whole["value"][:, :, keys],
    }
    if "key_bias" in whole:
        held["key_bias"] = whole["key_bias"][:, :, keys]
    leaves = {n: held.get(n, t).detach().requires_grad_() for n, t in whole.items()}
    tensors, settings = contract.arguments(leaves)
    visibility = call_of(contract).visibility_with_positions()
    given = {"query_positions", "key_positions"} & settings.keys()
    for name in (*OF_QUERIES, *OF_KEYS):
        settings.pop(name, None)
        of_all = getattr(visibility, name)
        if of_all is not None:
            part = of_all[:, queries if name in OF_QUERIES else keys]
            settings[name] = part if name == "key_mask" or len(part) > 1 else part[0]
    if cut.layouts is not None:
        settings["layout"] = cut.layouts[rank]
        if not given:
            del settings["query_positions"], settings["key_positions"]
        # Queries and keys are the same tokens, so that those of the keys will do.
        settings.pop("query_documents" if contract.seed % 2 and _same(visibility) else "", None)
    out, lse = sia.context_parallel_attention(
        *tensors, **settings, method=method, backend=backend, return_lse=True
    )
    grad_out = (contract.grad_out if grad_out is None else grad_out)[:, :, queries].to(out.dtype)
    grad_lse = contract.grad_lse[:, :, queries].to(lse.dtype).masked_fill(lse == -torch.inf, 0)
    grad_lse = grad_lse.masked_fill((grad_out == 0).all(-1), 0)
    grads = torch.autograd.grad((out, lse), tuple(leaves.values()), (grad_out, grad_lse))
    return Results(out.detach(), lse.detach(), dict(zip(leaves, grads, strict=True)))


def _same(visibility) -> bool:
    documents = visibility.query_documents, visibility.key_documents
    return None not in documents and torch.equal(*documents)


def joined(contract: Contract, cut: Cut, by_rank: list[Results]) -> Results:
    """Whole results from those of the ranks."""

    def whole(parts: list[Tensor], indices: list[Tensor]) -> Tensor:
        length = sum(map(len, indices))
        result = parts[0].new_empty(*parts[0].shape[:2], length, *parts[0].shape[3:])
        for part, index in zip(parts, indices, strict=True):
            result[:, :, index] = part
        return result

    indices = {"query": cut.queries, **dict.fromkeys(("key", "value", "key_bias"), cut.keys)}
    grads = {
        name: whole([it.grads[name] for it in by_rank], indices[name])
        if name in indices
        else by_rank[0].grads[name]
        for name in contract.inputs
    }
    out, lse = (whole([getattr(it, n) for it in by_rank], cut.queries) for n in ("out", "lse"))
    return Results(out, lse, grads)


def failures(seed: int, rank: int, size: int) -> list[str]:
    """Failed checks of the contract of a seed, found by the rank whose turn it is."""
    rng, contract = random.Random(-seed), draw(seed, long_ones=False, coordinates=False)
    method = list(METHODS)[seed // 7 % len(METHODS)]
    if method == "heads" and contract.query.shape[1] % size:
        contract = widened(contract, size)
    if method == "heads" and max(contract.key.shape[1], size) % min(contract.key.shape[1], size):
        contract = widened(contract, size)
    cut = draw_cut(rng, contract, size)
    backend = rng.choice(("auto", "auto", "tiled", "reference"))
    # Short sequences make a single round unless pieces are smaller than they need be.
    _ring.LEAST["cpu"] = rng.choice((3, 20, 20, 512))
    described = f"{contract} {size} ranks {method} {cut.name} {backend} {_ring.LEAST}"
    judge = seed % size
    found = _gathered(local_results(contract, cut, rank, method, backend), judge, rank, size)
    violations = []
    if found:
        violations = Judge(contract).violations(joined(contract, cut, found))
        for other in found[1:]:
            for name in contract.learned.keys() - {"key_bias"}:
                if not torch.equal(found[0].grads[name], other.grads[name]):
                    violations.append(f"grad of {name} differs between ranks")
    if seed % 5 == 0:
        violations += hidden_nan_leaks(contract, cut, rank, size, method, backend)
    return [f"{described}\n    {it}" for it in violations]


def hidden_nan_leaks(
    contract: Contract, cut: Cut, rank: int, size: int, method: str, backend: str
) -> list[str]:
    """Results that NaN in keys and values changes though their queries do not see it."""
    spoilt, seeing = poisoned(contract)
    grad_out = contract.grad_out.masked_fill(seeing.unsqueeze(-1), 0)
    both = []
    for inputs in (contract.inputs, spoilt):
        local = local_results(contract, cut, rank, method, backend, inputs, grad_out)
        both.append(_gathered(local, contract.seed % size, rank, size))
    if not both[0]:
        return []
    clean, dirty = (joined(contract, cut, by_rank).tensors() for by_rank in both)
    return [f"hidden NaN: {it}" for it in leaks(clean, dirty, seeing)]


def _gathered(local: Results, judge: int, rank: int, size: int) -> list[Results]:
    """The results of all ranks on the rank that judges, and nothing on the others."""
    found: list[Results | None] = [None] * size
    dist.gather_object(local, found if rank == judge else None, dst=judge)
    return found if rank == judge else []


def examine(size: int, store: str, seeds: range, seconds: float, rank: int) -> None:
    torch.set_num_threads(1)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{store}", timeout=wait, rank=rank, world_size=size)
    started, done, found = time.monotonic(), 0, 0
    for seed in seeds:
        late = torch.tensor(time.monotonic() - started > seconds)
        dist.broadcast(late, 0)
        if late:
            break
        failed = failures(seed, rank, size)
        for failure in failed:
            os.write(1, f"{failure}\n".encode())
        done, found = done + 1, found + len(failed)
    total = torch.tensor(found)
    dist.all_reduce(total)
    if rank == 0:
        os.write(1, f"{size} ranks: {done} contracts, {int(total)} failures\n".encode())
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("cases", type=int, help="maximum number of contracts per number of ranks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="per number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.cases)
    code = 0
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            action = partial(examine, size, f"{folder}/store", seeds, options.seconds)
            code |= any(forked(size, action))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
