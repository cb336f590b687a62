"""Whether a backend is right on a device: a set of small contracts, forward and backward.

The truth is `tiled` in float64 on the same device. The error may be at most twice that of eager code
whose products take the same dtype, in gradients three times, plus rounding. Where torch allows TF32, the
factors of float32 products are rounded to it in eager code too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..theory.transform import scale_invariant_gain_and_bias
from . import tiled
from ._affine import DistanceAffine
from ._self_check_contracts import BATCH, CONTRACTS, FLOAT16, SINGLE, Contract
from .contract import AttentionCall, checked_call
from .numerics import (
    TF32_DROPS,
    compute_dtype,
    multiplies_in_tf32,
    round_to_tf32,
    without_autocast,
)
from .visibility import Visibility

if TYPE_CHECKING:
    from .backends import Backend

TAU = 10.0
# The multiples of the eager error that a result and a gradient may have.
RESULT_FACTOR, GRADIENT_FACTOR = 2, 3
# A weight is an exponential: it turns the rounding of a logit, which stays below this size in all
# contracts, into a relative error.
ROUNDINGS = 32
_FLOAT32_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Difference:
    """A result that errs, or the one closest to it: how far, and how far it may."""

    contract: str
    dtype: str
    tensor: str
    error: float
    budget: float

    def __str__(self) -> str:
        return (
            f"{self.contract}, {self.dtype}: {self.tensor} errs by {self.error:.2g}, "
            f"allowed is {self.budget:.2g}"
        )


@dataclass(frozen=True)
class Outcome:
    """Result of a self-check.

    Attributes:
        differences: the results beyond their budgets.
        problem: the exception that ended the check, if one did.
        closest: the result that used most of its budget.
        declined: the contracts that the backend does not support.
        seconds: how long the check took, including compilation unless that came before.
        compile_seconds: how long compilation before the check took.
    """

    backend: str
    differences: tuple[Difference, ...] = ()
    problem: str | None = None
    closest: Difference | None = None
    declined: tuple[str, ...] = ()
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Outcome":
        """The inverse of :meth:`as_json`; raises TypeError or KeyError for anything else."""
        closest = fields["closest"]
        return cls(
            **fields
            | {
                "differences": tuple(Difference(**entry) for entry in fields["differences"]),
                "closest": None if closest is None else Difference(**closest),
                "declined": tuple(fields["declined"]),
            }
        )

    def as_json(self) -> dict[str, Any]:
        """All fields in types that JSON has."""
        return asdict(self)

    @property
    def passed(self) -> bool:
        """Whether the backend may be relied on."""
        return not self.differences and self.problem is None

    @property
    def findings(self) -> str:
        """All problems in one line; empty if there are none."""
        first = [self.problem] if self.problem is not None else []
        found = [*first, *map(str, self.differences)]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0]}{more}" if found else ""


def check(
    backend: "Backend", device: torch.device | str, contracts: Sequence[Contract] = CONTRACTS
) -> Outcome:
    """Run every contract on a backend and compare; never call it while torch traces or fakes.

    >>> from scale_invariant_attention.attention.backends import BACKENDS
    >>> check(BACKENDS["tiled"], "cpu", CONTRACTS[:1]).passed
    True
    """
    device = torch.device(device)
    start = perf_counter()
    checked: list[Difference] = []
    declined: list[str] = []
    problem = None
    # The caller's modes are no part of the check: inference, no_grad, autocast.
    with torch.inference_mode(False), torch.enable_grad(), without_autocast(device):
        for contract in contracts:
            try:
                found = list(_differences(backend, contract, device))
            except Exception as error:  # whatever a kernel raises is the finding
                problem = f"{contract.name}: {type(error).__name__}: {error}"
                break
            checked += found
            declined += [] if found else [contract.name]
    if problem is None and not checked:
        problem = "it declined every contract"
    return Outcome(
        backend.name,
        # Written so that NaN is a difference.
        differences=tuple(it for it in checked if not it.error <= it.budget),
        problem=problem,
        closest=max(checked, key=_use_of_budget, default=None),
        declined=tuple(declined),
        seconds=perf_counter() - start,
    )


def _use_of_budget(difference: Difference) -> float:
    return difference.error / difference.budget if difference.budget else 0.0


def _differences(
    backend: "Backend", contract: Contract, device: torch.device
) -> Iterator[Difference]:
    """The error of every result of a contract; none if declined."""
    for precision in contract.precisions:
        dtype = dtype_of(precision, device)
        problem = Problem.draw(contract, device, dtype)
        if backend.refusal(problem.call(problem.leaves(dtype)), return_lse=True) is not None:
            continue
        exact = problem.results(tiled.attention, torch.float64)
        plain = problem.results(_eager, dtype)
        given = problem.results_of(backend)
        for name, right in exact.items():
            factor = GRADIENT_FACTOR if name.startswith("gradient") else RESULT_FACTOR
            # The result is rounded to its own dtype, and computed in float32.
            rounding = torch.finfo(plain[name].dtype).eps + ROUNDINGS * _FLOAT32_EPS
            budget = factor * _largest_error(plain[name], right) + rounding * _largest(right)
            if name == "gradient of tau":
                budget += problem.tau_rounding()
            error = _largest_error(given[name], right)
            yield Difference(contract.name, _short(dtype), name, error, budget)


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of a precision on a device."""
    if precision in (SINGLE, FLOAT16):
        return torch.float32 if precision == SINGLE else torch.float16
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _largest(tensor: Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _largest_error(tensor: Tensor, exact: Tensor) -> float:
    """The largest error; infinite if the shape differs, or what must be infinite is not."""
    if tensor.shape != exact.shape:
        return torch.inf
    finite, wide = torch.isfinite(exact), tensor.double()
    if not torch.equal(wide[~finite], exact[~finite]):
        return torch.inf
    errors = (wide - exact)[finite].abs()
    # The maximum of numbers with a NaN is NaN.
    return float(errors.max()) if errors.numel() else 0.0


@dataclass(frozen=True)
class Problem:
    """The numbers of a contract in one dtype, and the incoming gradients."""

    inputs: dict[str, Tensor]
    visibility: Visibility
    grad_out: Tensor
    grad_lse: Tensor
    dtype: torch.dtype
    contract: Contract

    @classmethod
    def draw(cls, contract: Contract, device: torch.device, dtype: torch.dtype) -> "Problem":
        """The same numbers every time."""
        # Its own generator: the check must not move the random numbers of the program.
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

        queries, keys = contract.queries, contract.keys
        query = normal(BATCH, contract.heads, queries, contract.head_dim)
        key = normal(BATCH, contract.key_heads, keys, contract.head_dim)
        value = normal(BATCH, contract.key_heads, keys, contract.value_dim)
        numbers = {"query": query.to(dtype), "key": key.to(dtype), "value": value.to(dtype)}
        if contract.sequence_first:
            numbers = {
                name: tensor.transpose(1, 2).contiguous().transpose(1, 2)
                for name, tensor in numbers.items()
            }
        if contract.learned == "tau":
            numbers["tau"] = torch.linspace(3, 30, contract.heads, device="cpu")
        elif contract.learned == "tables":
            tables = DistanceAffine.scale_invariant(2 * keys, TAU, device="cpu")
            noise = 0.3 * normal(2, contract.heads, 2 * keys).float()
            numbers |= {"gain": tables.gain + noise[0], "bias": tables.bias + noise[1]}
        if contract.key_bias:
            numbers["key_bias"] = normal(BATCH, contract.heads, keys).float()
            numbers["key_bias"][0, :, ::3] = -torch.inf
        return cls(
            {name: tensor.to(device) for name, tensor in numbers.items()},
            _on(device, contract.visibility()),
            normal(BATCH, contract.heads, queries, contract.value_dim).to(dtype).to(device),
            normal(BATCH, contract.heads, queries).float().to(device),
            dtype,
            contract,
        )

    def leaves(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The numbers as leaves: in float64, or in their own dtypes."""
        wide = dtype == torch.float64
        tensors = {name: t.double() if wide else t.clone() for name, t in self.inputs.items()}
        return {name: tensor.requires_grad_() for name, tensor in tensors.items()}

    def call(self, leaves: dict[str, Tensor]) -> AttentionCall:
        """The checked call of some leaves."""
        tables = "gain" in leaves
        return checked_call(
            leaves["query"],
            leaves["key"],
            leaves["value"],
            affine=DistanceAffine(leaves["gain"], leaves["bias"]) if tables else None,
            tau=None if tables else leaves.get("tau", TAU),
            visibility=self.visibility,
            key_bias=leaves.get("key_bias"),
        )

    def results(
        self, attention: Callable[[AttentionCall], tuple[Any, ...]], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Output, log-sum-exp and all gradients."""
        return self._results(attention, self.leaves(dtype))

    def _results(
        self, attention: Callable[[AttentionCall], tuple[Any, ...]], leaves: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        out, lse = attention(self.call(leaves))[:2]
        if not self.contract.gradients:
            return {"output": out.detach(), "log-sum-exp": lse.detach()}
        # The log-sum-exp of a row that sees no key is -inf for any inputs.
        grad_lse = self.grad_lse.to(lse.dtype).masked_fill(lse == -torch.inf, 0)
        grads = torch.autograd.grad(
            (out, lse), tuple(leaves.values()), (self.grad_out.to(out.dtype), grad_lse)
        )
        named = {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
        return {"output": out.detach(), "log-sum-exp": lse.detach(), **named}

    def results_of(self, backend: "Backend") -> dict[str, Tensor]:
        """The results of a backend in the dtype of the problem, with NaN where nothing sees it."""
        leaves = self.leaves(self.dtype)
        if self.contract.hidden_nan:
            mask = self.visibility.key_mask
            assert mask is not None
            with torch.no_grad():
                for name in ("key", "value"):
                    leaves[name].masked_fill_(~mask[:, None, :, None], torch.nan)
        return self._results(lambda call: backend.attention(call, True), leaves)

    def tau_rounding(self) -> float:
        """Rounding of the sum over all pairs that makes up the gradient of tau.

        Single numbers, and sums of terms of both signs: the eager error alone may happen to be tiny.
        """
        leaves = self.leaves(torch.float64)
        call = self.call(leaves)
        out, lse, logits, scores = _eager(call)
        grad_lse = self.grad_lse.double().masked_fill(lse == -torch.inf, 0)
        (grad,) = torch.autograd.grad((out, lse), logits, (self.grad_out.double(), grad_lse))
        tau, distance = leaves["tau"].reshape(-1, 1, 1), call.visibility_with_positions().distance
        slope = distance.unsqueeze(1) / (tau * (distance.unsqueeze(1) + tau))
        terms = (grad * slope * (scores.abs() + 2)).detach()
        random_walk = terms.square().sum((0, 2, 3)).sqrt().max()
        total = terms.abs().sum((0, 2, 3)).max()
        narrow = torch.finfo(self.dtype).eps
        if multiplies_in_tf32(self.inputs["query"]):
            narrow *= 2**TF32_DROPS
        return narrow * float(random_walk) + _FLOAT32_EPS * float(total)


def _on(device: torch.device, visibility: Visibility) -> Visibility:
    names = (name for name in Visibility.__slots__ if isinstance(getattr(visibility, name), Tensor))
    return replace(visibility, **{name: getattr(visibility, name).to(device) for name in names})


def _eager(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plain attention: output, log-sum-exp, logits and scores.

    As in fused kernels, both factors of a product are in the dtype of the call, everything else is wide.
    """
    dtype, wide = call.query.dtype, compute_dtype(call.query.dtype)
    in_tf32 = multiplies_in_tf32(call.query)

    def factor(tensor: Tensor) -> Tensor:
        return round_to_tf32(tensor) if in_tf32 else tensor.to(dtype).to(wide)

    def round_gradient_of(tensor: Tensor) -> None:
        if tensor.requires_grad:
            tensor.register_hook(factor)  # type: ignore[no-untyped-call]

    visibility = call.visibility_with_positions()
    distance, visible = visibility.distance.unsqueeze(1), visibility.visible.unsqueeze(1)
    if call.tau is None:
        assert call.gain is not None
        assert call.bias is not None
        last = call.gain.shape[1] - 1
        index = distance.squeeze(1).clamp_max(last)
        gain, bias = (table[:, index].transpose(0, 1) for table in (call.gain, call.bias))
    else:
        tau = call.tau.to(wide).reshape(-1, 1, 1)
        gain, bias = scale_invariant_gain_and_bias(distance.to(wide), tau)
    sink = visibility.sink
    if sink is not None:
        gain, bias = torch.where(sink, 1.0, gain), torch.where(sink, 0.0, bias)
    key, value = (t.repeat_interleave(call.group, 1) for t in (call.key, call.value))
    scores = factor(call.query) @ factor(key).mT * call.scale
    round_gradient_of(scores)
    logits = gain.to(wide) * scores + bias.to(wide)
    if call.key_bias is not None:
        logits = logits + call.key_bias.unsqueeze(2)
        visible = visible & (call.key_bias != -torch.inf).unsqueeze(2)
    hidden = logits.masked_fill(~visible, -torch.inf)
    nothing = ~visible.any(-1, keepdim=True)
    weights = torch.softmax(hidden.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)
    lse = torch.logsumexp(hidden.masked_fill(nothing, 0), -1)
    lse = lse.masked_fill(nothing.squeeze(-1), -torch.inf)
    out = factor(weights) @ factor(value)
    round_gradient_of(out)
    return out.to(dtype), lse, logits, scores
