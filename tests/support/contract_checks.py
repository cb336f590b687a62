"""Checks of every backend on a random contract, for the tests and `make fuzz`."""

import random

import moved_backends
import torch
from error_budgets import Judge, Results, public_call, run
from random_contracts import Contract
from torch import Tensor

from scale_invariant_attention import available_backends
from scale_invariant_attention.attention import Visibility, tiled
from scale_invariant_attention.attention.backends import BACKENDS
from scale_invariant_attention.attention.contract import checked_call


def failures(contract: Contract) -> list[str]:
    """Descriptions of all failed checks of a contract.

    Every contract runs on the tiled backend and, unless it is in float64, on the compiled one. The
    costlier checks take turns.
    """
    judge, turn = Judge(contract), contract.seed % 4
    found = [f"tiled: {v}" for v in judge.violations(run(contract, public_call("tiled")))]
    if "cpu" in available_backends() and contract.query.dtype != torch.float64:
        found += [f"cpu: {v}" for v in judge.violations(run(contract, public_call("cpu")))]
        found += [f"cpu, hidden NaN: {v}" for v in hidden_nan_leaks(contract, "cpu")]
    for name in moved_backends.installed():
        if BACKENDS[name].refusal(call_of(contract), return_lse=True) is None:
            found += [f"{name}: {v}" for v in judge.violations(run(contract, public_call(name)))]
            found += [f"{name}, hidden NaN: {v}" for v in hidden_nan_leaks(contract, name)]
    if turn in (0, 2):
        found += [f"the oracle: {v}" for v in judge.oracle_doubts()]
    if turn in (0, 2):
        found += [f"small tiles: {v}" for v in judge.violations(with_small_tiles(contract))]
    if turn == 1:
        results = run(contract, public_call("reference"))
        found += [f"reference: {v}" for v in judge.violations(results)]
    # With several threads torch sums gradients of table lookups in no fixed order.
    if turn == 1 and torch.get_num_threads() == 1:
        found += [f"reference, hidden NaN: {v}" for v in hidden_nan_leaks(contract, "reference")]
    if turn == 3:
        found += [f"tiled, hidden NaN: {v}" for v in hidden_nan_leaks(contract, "tiled")]
    return found


def with_small_tiles(contract: Contract) -> Results:
    """Results of the tiled backend with tiles so small that even short sequences need many."""
    rng = random.Random(contract.seed)
    call = call_of(contract)
    queries = -(-call.query.shape[2] // rng.randint(1, 5))
    keys = -(-call.key.shape[2] // rng.randint(1, 5))
    size = tiled.TileSize(queries, keys, queries * keys * rng.choice((1, 2, 9)))
    out, lse = tiled.forward(call, size)
    grad_lse = contract.grad_lse.to(lse.dtype).masked_fill(lse == -torch.inf, 0)
    grad_out = contract.grad_out.to(out.dtype)
    grads = tiled.backward(call, out, lse, grad_out, grad_lse, True, size)._asdict()
    given = contract.learned.get("key_bias")
    if given is not None:
        # The call has it by batch row and query head.
        by_head = grads["key_bias"].unflatten(1, (given.shape[1], -1)).sum(2)
        grads["key_bias"] = by_head.sum_to_size(given.shape).to(given.dtype)
    out = out.to(contract.query.dtype)
    return Results(out, lse, {name: grads[name].view_as(t) for name, t in contract.inputs.items()})


def call_of(contract: Contract, inputs: dict[str, Tensor] | None = None):
    """The checked call of a contract."""
    tensors, settings = contract.arguments(inputs or contract.inputs)
    affine = settings.pop("affine", None)
    tau = settings.pop("tau", 10.0 if affine is None else None)
    others = {name: settings.pop(name, None) for name in ("scale", "key_bias")}
    visibility = Visibility(**settings)
    return checked_call(*tensors, affine=affine, tau=tau, visibility=visibility, **others)


def poisoned(contract: Contract) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs with NaN or infinity in some keys, values or key biases, and the rows that see it."""
    rng = random.Random(contract.seed)
    call = call_of(contract)
    visible = call.visibility_with_positions().visible.unsqueeze(1)
    visible = visible.expand(*contract.query.shape[:2], -1, -1)
    if call.key_bias is not None:
        visible = visible & ~call.key_bias.isneginf().unsqueeze(2)
    keys = contract.key.shape[2]
    chosen = torch.zeros(keys, dtype=torch.bool)
    chosen[rng.sample(range(keys), rng.randint(1, max(1, keys // 4)))] = True
    if rng.random() < 0.5:
        chosen |= ~visible.flatten(0, 2).any(0)

    inputs = dict(contract.inputs)
    spoilt = [("key",), ("value",), ("key", "value")]
    if "key_bias" in inputs:
        spoilt += [("key_bias",), ("key", "key_bias")]
    for name in rng.choice(spoilt):
        inputs[name] = contract.inputs[name].clone()
        inputs[name][:, :, chosen] = rng.choice((torch.nan, torch.inf))
    if "key_bias" in inputs:
        # A key that it hides stays hidden.
        hidden = contract.inputs["key_bias"].isneginf()
        inputs["key_bias"] = inputs["key_bias"].masked_fill(hidden, -torch.inf)
    return inputs, (visible & chosen).any(-1)  # [B, Hq, Lq]


def hidden_nan_leaks(contract: Contract, backend: str) -> list[str]:
    """Poison some keys, and list the results that change though they must not.

    Results of queries that do not see the poison must stay bit-identical. Queries that do see it get no
    gradient in either run.
    """
    inputs, seeing = poisoned(contract)
    grad_out = contract.grad_out.masked_fill(seeing.unsqueeze(-1), 0)
    clean = run(contract, public_call(backend), grad_out=grad_out).tensors()
    dirty = run(contract, public_call(backend), inputs=inputs, grad_out=grad_out).tensors()
    return leaks(clean, dirty, seeing)


def leaks(clean: dict[str, Tensor], dirty: dict[str, Tensor], seeing: Tensor) -> list[str]:
    """The results that poison has changed although they do not depend on what rows see of it."""
    found = []
    for name, before in clean.items():
        after = dirty[name]
        kept = ~seeing if name in ("out", "lse") else ...
        if not torch.equal(before[kept], after[kept]):
            found.append(
                f"{name} of queries that do not see it" if name in ("out", "lse") else name
            )
        if name == "out" and not after[seeing].isnan().all():
            found.append("no NaN where it is seen")
    return found
