"""Whether rivals are right: each is compared with the float64 reference before it is timed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ...attention import DistanceAffine
from .problem import FORWARD_AND_BACKWARD, PASSES, Inputs, Problem, Setting
from .rivals import TAU, Attention, Rival, backend, eager

# No size is a multiple of a tile or of a vector.
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 111, 60
# Kernels for GPUs have sizes that they do not take.
HALF_LENGTH, HALF_HEAD_DIM = 200, 64
# The multiple of the eager error that a gradient may have.
GRADIENT_FACTOR = 3


@dataclass(frozen=True)
class Form:
    """A kind of call; all but the `plain` ones need the whole contract of the op."""

    name: str
    plain: bool = False
    queries: int = LENGTH
    key_heads: int = HEADS
    contract: Mapping[str, Any] = field(default_factory=dict)
    tables: bool = False


_DOCUMENTS = torch.arange(LENGTH) // 40

FORMS = (
    Form("causal", plain=True),
    Form("decode", plain=True, queries=1),
    Form("fewer queries than keys", queries=50),
    Form("grouped heads", key_heads=2),
    Form("window and sinks", contract={"window": 29, "sinks": 3}),
    Form("documents", contract={"query_documents": _DOCUMENTS, "key_documents": _DOCUMENTS}),
    Form("tables", tables=True),
)


def fault(rival: Rival) -> str | None:
    """Description of a rival's wrong results on CPUs in float32; None if all are right.

    Its error may be at most twice that of the reference in float32, plus rounding. A rival that does not
    transform is compared with gain 1 and bias 0. A rival may decline all forms but the plain ones.
    """
    forms = (form for form in FORMS if form.plain or rival.whole_contract)
    return next((found for form in forms if (found := _fault(rival, form))), None)


def faults_by_pass(
    rival: Rival, setting: Setting, passes: Sequence[str] = PASSES
) -> dict[str, str]:
    """Descriptions of a rival's wrong results on GPUs or in half precision, by the pass they spoil.

    The error may be at most twice that of eager code in the same dtype, in gradients three times, plus
    rounding. A rival that fails in one pass may be right in the others: some kernels have no backward.
    """
    found = {name: _fault_in_pass(rival, setting, name) for name in passes}
    return {name: fault for name, fault in found.items() if fault is not None}


def _fault(rival: Rival, form: Form) -> str | None:
    reference = backend("reference").attention
    tables = form.tables or not rival.transforms
    exact = _results(reference, form, torch.float64, rival, tables)
    plain = _results(reference, form, torch.float32, rival, tables)
    try:
        given = _results(rival.attention, form, torch.float32, rival, form.tables)
    except Exception as raised:
        if isinstance(raised, NotImplementedError) and not form.plain:
            return None
        return f"{rival.name} raises {type(raised).__name__} ({form.name}): {raised}"
    for name, right in exact.items():
        if name not in given:
            continue
        wrong = f"{rival.name} is wrong ({form.name}): {name}"
        if given[name].shape != right.shape:
            return f"{wrong} has the shape {tuple(given[name].shape)}"
        rounding = 8 * torch.finfo(torch.float32).eps * right.abs().max()
        allowed = 2 * (plain[name] - right).abs().max() + rounding
        error = (given[name] - right).abs().max()
        # Written so that NaN is a fault.
        if not error <= allowed:
            return f"{wrong} errs by {error:.2g}, allowed is {allowed:.2g}"
    return None


def _fault_in_pass(rival: Rival, setting: Setting, pass_name: str) -> str | None:
    if pass_name == FORWARD_AND_BACKWARD and not rival.trains:
        return None  # it takes no part
    problem = Problem(HEADS, HALF_HEAD_DIM, HALF_LENGTH, pass_name, BATCH, setting)
    inputs = problem.inputs()
    plain = partial(_plain, transforms=rival.transforms)
    exact = problem.run(plain, Inputs(*(tensor.double() for tensor in inputs)))()
    usual = problem.run(plain, inputs)()
    try:
        given = problem.run(rival.attention, inputs)()
    except Exception as raised:
        first, *_ = str(raised).splitlines() or [""]
        return f"{rival.name} raises {type(raised).__name__} ({pass_name}): {first}"
    names = ("output", "query gradient", "key gradient", "value gradient")
    for name, right, eager_result, result in zip(names, exact, usual, given, strict=False):
        factor = 2 if name == "output" else GRADIENT_FACTOR
        rounding = 2 * torch.finfo(setting.dtype).eps * right.abs().max()
        allowed = factor * (eager_result - right).abs().max() + rounding
        error = (result - right).abs().max()
        # Written so that NaN is a fault.
        if not error <= allowed:
            wrong = f"{name} errs by {error:.2g}, allowed is {allowed:.2g}"
            return f"{rival.name} is wrong ({pass_name}): {wrong}"
    return None


def _plain(query: Tensor, key: Tensor, value: Tensor, *, transforms: bool) -> Tensor:
    """Eager code with every intermediate in the dtype of the inputs."""
    if transforms:
        return eager(query, key, value)
    scores = query @ key.mT / sqrt(query.shape[3])
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + key.shape[2] - query.shape[2])
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ value


def _results(
    attention: Attention, form: Form, dtype: torch.dtype, rival: Rival, tables: bool
) -> dict[str, Tensor]:
    """Output and, if the rival trains, gradients, for the same float32 numbers in any dtype."""
    generator = torch.Generator().manual_seed(0)

    def normal(heads: int, tokens: int) -> Tensor:
        return torch.randn(BATCH, heads, tokens, HEAD_DIM, generator=generator).to(dtype)

    inputs = {
        "query": normal(HEADS, form.queries),
        "key": normal(form.key_heads, LENGTH),
        "value": normal(form.key_heads, LENGTH),
    }
    grad = normal(HEADS, form.queries)
    contract = dict(form.contract)
    learned = inputs
    if tables:
        affine = _affine(rival.transforms, dtype)
        contract["affine"] = affine
        learned = inputs | {"gain": affine.gain, "bias": affine.bias}
    if not rival.trains:
        with torch.no_grad():
            return {"output": attention(*inputs.values(), **contract)}
    for tensor in learned.values():
        tensor.requires_grad_()
    out = attention(*inputs.values(), **contract)
    gradients = torch.autograd.grad(out, list(learned.values()), grad)
    names = (f"{name} gradient" for name in learned)
    return {"output": out.detach()} | dict(zip(names, gradients, strict=True))


def _affine(transforms: bool, dtype: torch.dtype) -> DistanceAffine:
    if transforms:
        return DistanceAffine.scale_invariant(LENGTH, TAU, dtype=dtype)
    plain = DistanceAffine.identity(LENGTH)
    return DistanceAffine(plain.gain.to(dtype), plain.bias.to(dtype))
