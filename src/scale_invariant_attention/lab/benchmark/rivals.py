"""The implementations to compare: SDPA, eager, every available backend, and kernels for GPUs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
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


def sdpa_on(kernel: SDPBackend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's plain attention on one of its kernels, which runs or raises."""
    with sdpa_kernel(kernel):
        return sdpa(query, key, value)


def flash_attn(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention's own package, whose last query sees every key."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    return _sequence_first(flash_attn_func, query, key, value)


def flash_attn_4(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """FlashAttention-4's own package."""
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

    return _sequence_first(flash_attn_func, query, key, value)


def _sequence_first(function: Callable[..., Any], *tensors: Tensor) -> Tensor:
    out = function(*(tensor.transpose(1, 2) for tensor in tensors), causal=True)
    result: Tensor = (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    return result


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The transform written down naively, with the whole score matrix."""
    position = torch.arange(key.shape[2], device=key.device)
    offset = position[-query.shape[2] :].unsqueeze(-1) - position
    doubled = (2 * torch.log1p(offset.clamp_min(0) / TAU)).to(query.dtype)
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

# Kernels for GPUs that do not transform: what speed they reach is what ours is compared with.
ON_GPUS = (
    ("sdpa-flash", partial(sdpa_on, SDPBackend.FLASH_ATTENTION), None),
    ("sdpa-cudnn", partial(sdpa_on, SDPBackend.CUDNN_ATTENTION), None),
    ("flash-attn", flash_attn, "flash_attn.flash_attn_interface"),
    ("flash-attn-4", flash_attn_4, "flash_attn.cute"),
)


def contenders(device: torch.device | str = "cpu") -> dict[str, Rival]:
    """All rivals that can run on a device, by name; a backend that is not `KNOWN` has default traits.

    >>> list(contenders())[:2]
    ['sdpa', 'eager']
    """
    known = {rival.name: rival for rival in KNOWN}
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        known["flex"] = replace(known["flex"], trains=True)
        # Known to be slow there, and measured only when named.
        known["tiled"] = backend("tiled", invited=False)
        known |= {
            name: Rival(name, attention, transforms=False, whole_contract=False)
            for name, attention, module in ON_GPUS
            if module is None or _is_installed(module)
        }
    others = [name for name, *_ in ON_GPUS if name in known]
    names = (BASELINE, *others, "eager", *available_backends(device))
    return {name: known.get(name) or backend(name) for name in names}


def _is_installed(module: str) -> bool:
    package, _, _ = module.partition(".")
    return find_spec(package) is not None and find_spec(module) is not None


def rival_named(name: str, device: torch.device | str = "cpu") -> Rival:
    """The rival of this name; the error says why it cannot run here."""
    known = contenders(device)
    if name in known:
        return known[name]
    reason = unavailable_backends(device).get(name, "there is no such rival")
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
