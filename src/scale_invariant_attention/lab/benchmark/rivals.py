"""The implementations to compare: SDPA, eager and every available backend; and a check of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...attention import (
    DistanceAffine,
    available_backends,
    distance_affine_attention,
    scale_invariant_attention,
    unavailable_backends,
)

TAU = 10.0
BASELINE = "sdpa"

# Takes query, key and value; a backend also takes the other arguments of the op, by name.
Attention = Callable[..., Tensor]


@dataclass(frozen=True)
class Rival:
    """An implementation of causal attention on ``[batch, heads, length, head_dim]``.

    Some do not `transform` the scores by distance, have no backward pass (`trains`), or do not take all
    arguments of the op (`whole_contract`). `score_matrices` is how many it holds at its peak. One that
    is not `invited` runs only when named.
    """

    name: str
    attention: Attention
    transforms: bool = True
    trains: bool = True
    whole_contract: bool = True
    score_matrices: int = 0
    invited: bool = True


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's plain attention: as many queries as keys, or one query that sees every key."""
    # torch takes a lone causal query to be the first one, which sees a single key.
    return scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The transform written down naively, with the whole score matrix."""
    position = torch.arange(key.shape[2])
    offset = position[-query.shape[2] :].unsqueeze(-1) - position
    doubled = 2 * torch.log1p(offset.clamp_min(0) / TAU)
    scores = query @ key.mT / sqrt(query.shape[3])
    logits = torch.sqrt(1 + doubled) * scores - doubled
    return torch.softmax(logits.masked_fill(offset < 0, -torch.inf), dim=-1) @ value


def backend(name: str, **traits: Any) -> Rival:
    """A backend of the package as a rival: the transform, or the tables of `affine`."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        affine: DistanceAffine | None = None,
        **contract: Any,
    ) -> Tensor:
        contract["backend"] = name
        out: Tensor
        if affine is None:
            out = scale_invariant_attention(query, key, value, tau=TAU, **contract)
        else:
            out = distance_affine_attention(query, key, value, affine, **contract)
        return out

    return Rival(name, attention, **traits)


KNOWN = (
    Rival(BASELINE, sdpa, transforms=False, whole_contract=False),
    Rival("eager", eager, whole_contract=False, score_matrices=5),
    backend("reference", score_matrices=6, invited=False),
    backend("flex", trains=False),
)


def contenders() -> dict[str, Rival]:
    """All rivals that can run here, by name; a backend that is not `KNOWN` has the default traits.

    >>> list(contenders())[:2]
    ['sdpa', 'eager']
    """
    known = {rival.name: rival for rival in KNOWN}
    names = (BASELINE, "eager", *available_backends())
    return {name: known.get(name) or backend(name) for name in names}


def rival_named(name: str) -> Rival:
    """The rival of this name; the error says why it cannot run here."""
    known = contenders()
    if name in known:
        return known[name]
    reason = unavailable_backends().get(name, "there is no such rival")
    raise ValueError(
        f"rival {name!r} cannot take part: {reason}; those that can are {', '.join(known)}"
    )


def backend_named(name: str) -> Rival:
    """The rival of this name, which must be a backend."""
    rival = rival_named(name)
    if not rival.whole_contract:
        raise ValueError(
            f"{name!r} is not a backend; backends are {', '.join(available_backends())}"
        )
    return rival


# No size is a multiple of a tile or of a vector.
BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 111, 60


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
    """Description of a rival's wrong results; None if all are right.

    Its error may be at most twice that of the reference in float32, plus rounding. A rival that does not
    transform is compared with gain 1 and bias 0. A rival may decline all forms but the plain ones.
    """
    forms = (form for form in FORMS if form.plain or rival.whole_contract)
    return next((found for form in forms if (found := _fault(rival, form))), None)


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
