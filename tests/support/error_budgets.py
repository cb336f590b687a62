"""Error budgets: a backend may err at most twice as much as eager code, in gradients three times.

Both errors are measured against the float64 reference. The eager implementation is written
independently, with torch.softmax, and shares no code with the package.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from random_contracts import Contract
from torch import Tensor

import scale_invariant_attention as sia


@dataclass
class Results:
    """Results of a call: output, log-sum-exp, and the gradient of every input."""

    out: Tensor
    lse: Tensor | None
    grads: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        named = {"out": self.out, **{f"grad of {name}": g for name, g in self.grads.items()}}
        return named if self.lse is None else {**named, "lse": self.lse}


def public_call(backend: str) -> Any:
    """A function from tensors and settings to (output, log-sum-exp) that calls the public API."""

    def attention(tensors: tuple[Tensor, ...], settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
        function = (
            sia.distance_affine_attention if "affine" in settings else sia.scale_invariant_attention
        )
        return function(*tensors, **settings, return_lse=True, backend=backend)

    return attention


def run(
    contract: Contract,
    attention: Any,
    dtype: torch.dtype | None = None,
    inputs: dict[str, Tensor] | None = None,
    grad_out: Tensor | None = None,
) -> Results:
    """Run a contract forward and backward, in its own dtype or another."""
    inputs = inputs or contract.inputs
    leaves = {name: _leaf(tensor, dtype) for name, tensor in inputs.items()}
    tensors, settings = contract.arguments(leaves)
    out, lse = attention(tensors, settings)
    grad_out = (contract.grad_out if grad_out is None else grad_out).to(out.dtype)
    # The log-sum-exp of a row that sees no key is -inf for any inputs.
    grad_lse = contract.grad_lse.to(lse.dtype).masked_fill(lse == -torch.inf, 0)
    if grad_out.shape[2] and not (grad_out != 0).any(-1).all():
        grad_lse = grad_lse.masked_fill((grad_out == 0).all(-1), 0)
    grads = torch.autograd.grad(
        (out, lse), tuple(leaves.values()), (grad_out, grad_lse), allow_unused=True
    )
    named = zip(leaves, grads, strict=True)
    filled = {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in named}
    return Results(out.detach(), lse.detach(), filled)


def _leaf(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The same values in the same layout, as a leaf that requires a gradient."""
    if dtype is not None and dtype != tensor.dtype:
        tensor = tensor.to(dtype)
    return tensor.detach().requires_grad_()


def oracle(contract: Contract) -> Results:
    """The float64 reference."""
    return run(contract, public_call("reference"), torch.float64)


def eager(contract: Contract) -> Results:
    """Plain attention in the contract's own dtype, every intermediate rounded to it."""
    return run(contract, _eager)


@dataclass
class _Pairs:
    """Quantities per query-key pair, each ``[1 or B, 1 or H, Lq, Lk]``."""

    visible: Tensor
    transformed: Tensor  # visible and no sink
    distance: Tensor
    gain: Tensor
    bias: Tensor
    dimensions: int


def _pairs(tensors: tuple[Tensor, ...], settings: dict[str, Any], wide: torch.dtype) -> _Pairs:
    queries, keys = tensors[0].shape[2], tensors[1].shape[2]
    of_points = settings.get("key_coordinates")
    dimensions = 1 if of_points is None else of_points.shape[-1]
    key_positions = settings.get("key_positions", torch.arange(keys)).long()
    default = torch.arange(keys - queries, keys)
    if "key_positions" in settings:
        default = key_positions[..., keys - queries :]
    query_positions = settings.get("query_positions", default).long()
    offset = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
    distance = offset.abs()
    visible = offset >= 0 if settings["is_causal"] else torch.ones_like(offset, dtype=torch.bool)
    sink = (key_positions < settings.get("sinks", 0)).unsqueeze(-2).expand_as(offset)
    if settings.get("sinks", 0) == 0:
        sink = torch.zeros_like(sink)
    if of_points is not None:
        last = of_points[..., keys - queries :, :] if queries <= keys else of_points
        points = settings.get("query_coordinates", last).long()
        squared = (points.unsqueeze(-2) - of_points.long().unsqueeze(-3)).square().sum(-1)
        distance, sink = squared.double().sqrt().to(wide), torch.zeros_like(sink)
        visible = torch.ones_like(squared, dtype=torch.bool)
    if "window" in settings and of_points is not None:
        visible = visible & (squared < settings["window"] ** 2)
    elif "window" in settings:
        visible = visible & ((distance < settings["window"]) | sink)
    if "key_documents" in settings:
        of_keys = settings["key_documents"]
        of_queries = settings.get("query_documents")
        of_queries = of_keys[..., keys - queries :] if of_queries is None else of_queries
        visible = visible & (of_queries.unsqueeze(-1) == of_keys.unsqueeze(-2))
    if "key_mask" in settings:
        visible = visible & settings["key_mask"].unsqueeze(-2)
    visible, distance, sink = (
        t.unsqueeze(1) if t.ndim == 3 else t[None, None] for t in (visible, distance, sink)
    )
    if "affine" in settings:
        affine = settings["affine"]
        gain, bias = (_by_distance(table, distance) for table in (affine.gain, affine.bias))
    else:
        tau = torch.as_tensor(settings.get("tau", 10.0), dtype=wide).reshape(-1, 1, 1)
        logarithm = dimensions * torch.log1p(distance / tau)
        gain, bias = torch.sqrt(1 + 2 * logarithm), -2 * logarithm
    gain, bias = torch.where(sink, 1.0, gain), torch.where(sink, 0.0, bias)
    if "key_bias" in settings:
        key_bias = _by_query_head(settings["key_bias"], tensors[0].shape[1]).unsqueeze(-2)
        visible = visible & (key_bias != -torch.inf)
        bias = bias + key_bias.where(key_bias != -torch.inf, 0).to(wide)
    return _Pairs(visible, visible & ~sink, distance, gain, bias, dimensions)


def _eager(tensors: tuple[Tensor, ...], settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    query, key, value = tensors
    dtype = query.dtype
    wide = dtype if dtype == torch.float64 else torch.float32
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    pairs = _pairs(tensors, settings, wide)
    scores = _multiply(query, key.mT) * settings.get("scale", query.shape[3] ** -0.5)
    logits = pairs.gain.to(dtype) * scores + pairs.bias.to(dtype)
    logits = logits.masked_fill(~pairs.visible, -torch.inf)
    anything = pairs.visible.any(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(~anything, 0), -1).masked_fill(~anything, 0)
    out = _multiply(weights, value)
    lse = torch.logsumexp(logits.masked_fill(~anything, 0).to(wide), -1)
    return out, lse.masked_fill(~anything.squeeze(-1), -torch.inf)


def magnitudes(contract: Contract, inputs: dict[str, Tensor] | None = None) -> dict[str, float]:
    """Largest sum of absolute terms that make up an element of each result, as the unit of rounding.

    Computes every product and sum of forward and backward with absolute values. Weights are multiplied
    by ``1 + |logit|``, because exponentials turn absolute errors of logits into relative ones.
    """
    doubles = {n: t.detach().double() for n, t in (inputs or contract.inputs).items()}
    tensors, settings = contract.arguments(doubles)
    query, key, value = tensors
    group = query.shape[1] // key.shape[1]
    wide_key, wide_value = (t.repeat_interleave(group, 1) for t in (key, value))
    scale = abs(settings.get("scale", query.shape[3] ** -0.5))
    pairs = _pairs(tensors, settings, torch.float64)
    _, lse = _eager(tensors, settings)
    scores = query @ wide_key.mT * settings.get("scale", query.shape[3] ** -0.5)
    weights = torch.exp(pairs.gain * scores + pairs.bias - lse.unsqueeze(-1))
    weights = torch.where(pairs.visible, weights, 0)
    score_sizes = scale * (query.abs() @ wide_key.abs().mT)
    logit_sizes = pairs.gain.abs() * score_sizes + pairs.bias.abs()
    loud = weights * (1 + logit_sizes)

    grad_out, grad_lse = contract.grad_out.double().abs(), contract.grad_lse.abs()
    grad_weights = grad_out @ wide_value.abs().mT
    delta = (loud * grad_weights).sum(-1, keepdim=True) + grad_lse.unsqueeze(-1)
    grad_logits = loud * (grad_weights + delta)
    grad_scores = grad_logits * pairs.gain.abs() * scale

    def of_keys(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (-1, group)).sum(2)

    sizes = {
        "out": loud @ wide_value.abs(),
        "lse": (loud * (1 + logit_sizes)).sum(-1),
        "grad of query": grad_scores @ wide_key.abs(),
        "grad of key": of_keys(grad_scores.mT @ query.abs()),
        "grad of value": of_keys(loud.mT @ grad_out),
    }
    if "key_bias" in doubles:
        rows, heads, keys = doubles["key_bias"].shape
        by_key = grad_logits.sum(2).unflatten(1, (heads, -1)).sum(2)
        sizes["grad of key_bias"] = by_key.sum_to_size(rows, heads, keys)
    grad_logits = torch.where(pairs.transformed, grad_logits, 0)
    if "tau" in doubles:
        tau = doubles["tau"].reshape(-1, 1, 1)
        slope = pairs.dimensions * pairs.distance / (tau * (pairs.distance + tau))
        by_pair = grad_logits * slope * (score_sizes + 2)
        sizes["grad of tau"] = by_pair.sum((0, 2, 3)) if doubles["tau"].ndim else by_pair.sum()
    for name in doubles.keys() & {"gain", "bias"}:
        by_pair = grad_logits * (score_sizes if name == "gain" else 1)
        table = doubles[name]
        length = table.shape[-1]
        by_head = torch.zeros(by_pair.shape[1], length, dtype=torch.float64)
        for indices, share in _around(pairs.distance, length):
            parts = (by_pair * share).expand_as(by_pair)
            for head, wide_indices in enumerate(indices.expand_as(by_pair).unbind(1)):
                by_head[head].index_add_(0, wide_indices.flatten(), parts[:, head].flatten())
        sizes[f"grad of {name}"] = by_head if table.ndim == 2 else by_head.sum(0)
    return {name: float(size.max()) if size.numel() else 0.0 for name, size in sizes.items()}


def _around(distance: Tensor, length: int) -> list[tuple[Tensor, Tensor | float]]:
    """The entries of a table that make up its value at a distance, each with its share."""
    if not distance.is_floating_point():
        return [(distance.clamp_max(length - 1), 1.0)]
    below = distance.floor()
    above = distance.ceil().long().clamp_max(length - 1)
    return [(below.long().clamp_max(length - 1), 1 - (distance - below)), (above, distance - below)]


def _by_distance(table: Tensor, distance: Tensor) -> Tensor:
    total = torch.zeros((), dtype=table.dtype)
    for indices, share in _around(distance, table.shape[-1]):
        found = table[indices] if table.ndim == 1 else table[:, indices.squeeze(1)].transpose(0, 1)
        # No share of -inf is nothing.
        total = total + torch.where(torch.as_tensor(share == 0), 0, share * found)
    return total


def _by_query_head(key_bias: Tensor, heads: int) -> Tensor:
    """``[1 or B, 1 or Hk or Hq, Lk]`` as ``[1 or B, Hq, Lk]``."""
    return key_bias.repeat_interleave(heads // key_bias.shape[1], 1)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Multiply as hardware does in narrow dtypes: accumulate in float32, round at the end."""
    if left.dtype.itemsize >= 4:
        return left @ right
    return (left.float() @ right.float()).to(left.dtype)


# Two implementations in float64 may differ by this many eps of the terms that they sum. The eager error
# says little there: the oracle rounds as much, and often the same.
BETWEEN_DOUBLES = 16
# Multiples of the gradients of the results, up to the power of two at which rounding repeats.
MULTIPLES = tuple(1 + n / 8 for n in range(1, 8))


class Judge:
    """The exact results of a contract, and how far a backend may deviate from them.

    Besides the multiple of the eager error, the budget allows for rounding: of the result to its dtype,
    and of the sums that lead to it in the compute dtype.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.truth, self.plain = oracle(contract).tensors(), eager(contract).tensors()
        self.finite = {name: torch.isfinite(exact) for name, exact in self.truth.items()}

    def error(self, name: str, tensor: Tensor) -> float:
        """Largest error where the truth is finite; NaN if a result is NaN there."""
        errors = (tensor.double() - self.truth[name])[self.finite[name]].abs()
        return float(errors.max()) if errors.numel() else 0.0

    @cached_property
    def plain_errors(self) -> dict[str, float]:
        """Errors of the eager implementation, ignoring values that overflow its dtype."""
        return {
            name: _largest((tensor.double() - self.truth[name])[self.finite[name]])
            for name, tensor in self.plain.items()
        }

    @cached_property
    def typical_errors(self) -> dict[str, float]:
        """Eager errors of gradients without the luck of errors that cancel, or of a few exact roundings.

        Gradients are linear in those of the results. So multiples of the latter ask for the same numbers
        again, rounded in other ways. Of all errors, each divided by its multiple, these are the largest.
        """
        largest = {name: error for name, error in self.plain_errors.items() if "grad" in name}
        for factor in MULTIPLES:
            grad_out, grad_lse = (
                factor * t for t in (self.contract.grad_out, self.contract.grad_lse)
            )
            contract = replace(self.contract, grad_out=grad_out, grad_lse=grad_lse)
            truth, plain = oracle(contract).tensors(), eager(contract).tensors()
            for name, so_far in largest.items():
                errors = (plain[name].double() - truth[name])[self.finite[name]]
                largest[name] = max(so_far, _largest(errors) / factor)
        return largest

    @cached_property
    def sizes(self) -> dict[str, float]:
        """`magnitudes`, computed only if the multiple of the eager error does not suffice."""
        return magnitudes(self.contract)

    def violations(self, results: Results) -> list[str]:
        """Descriptions of all results of a backend that exceed their budget."""
        found = []
        for name, tensor in results.tensors().items():
            exact, plain = self.truth[name], self.plain[name]
            if tensor.shape != exact.shape or tensor.dtype != plain.dtype:
                found.append(f"{name}: {tensor.dtype} {tuple(tensor.shape)}")
                continue
            infinite = ~self.finite[name]
            if not torch.equal(tensor.double()[infinite], exact[infinite]):
                found.append(f"{name}: differs where the truth is infinite")
            error = self.error(name, tensor)
            is_grad = name.startswith("grad")
            budget = (3 if is_grad else 2) * self.plain_errors[name]
            if not error <= budget:
                budget += self.rounding(name, plain.dtype)
            if not error <= budget and is_grad:
                budget += 3 * (self.typical_errors[name] - self.plain_errors[name])
            if not error <= budget:
                found.append(f"{name}: error {error:.3e}, budget {budget:.3e}")
        return found

    def oracle_doubts(self) -> list[str]:
        """Descriptions of all results where the reference and the eager code disagree in float64."""
        independent = run(self.contract, _eager, torch.float64).tensors()
        found = []
        for name, finite in self.finite.items():
            error = self.error(name, independent[name])
            allowed = BETWEEN_DOUBLES * torch.finfo(torch.float64).eps * self.sizes[name]
            if not torch.equal(finite, torch.isfinite(independent[name])) or not error <= allowed:
                found.append(f"{name}: error {error:.3e}, allowed {allowed:.3e}")
        return found

    def rounding(self, name: str, dtype: torch.dtype) -> float:
        """One eps of the result in its dtype, plus one eps of the terms it sums in the compute dtype.

        Gradients have two of the latter: a backward pass computes each logit again, and subtracts a
        log-sum-exp in which the forward pass has rounded it before. Eager code keeps its weights.
        """
        if self.contract.query.dtype == torch.float64:
            sums = BETWEEN_DOUBLES * torch.finfo(torch.float64).eps
        else:
            sums = (2 if name.startswith("grad") else 1) * torch.finfo(torch.float32).eps
        return torch.finfo(dtype).eps * _largest(self.truth[name]) + sums * self.sizes[name]


def _largest(tensor: Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 0.0
