"""Small GPTs of every scheme, with weights that exercise every part, and their eager counterpart."""

from collections.abc import Sequence
from typing import Any

import torch
from eager_gpt import eager_logits
from torch import Tensor

from scale_invariant_attention import schemes
from scale_invariant_attention.model import GPT, GPTConfig

VOCABULARY = 50
TRAINED = 12

# Options with which hybrids fit into two layers and a short text.
HYBRIDS: dict[str, dict[str, Any]] = {
    "llama4": {"window": 5, "local_layers": 1},
    "swan": {"window": 5, "local_layers": 1},
    "scale-invariant-global": {"window": 5, "local_layers": 1, "learn_tau": True},
}
# Scheme and options by case: all schemes, and the options that change a model's output.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, HYBRIDS.get(name, {})) for name in schemes.names()},
    "delta rule": ("infini-p-rope", {"segment_length": 4, "rule": "delta"}),
    "learned tau": ("scale-invariant-p-rope", {"learn_tau": True}),
    "tau 0.5": ("scale-invariant-rope", {"tau": 0.5}),
    "fraction 0.75": ("p-rope", {"fraction": 0.75, "base": 100.0}),
    "logn of the context": ("logn-rope", {"counts": "context"}),
    "logn of the context, ntk": ("logn-ntk", {"counts": "context"}),
    "window": ("logn-rope", {"window": 5}),
    "pattern": (
        "rope,scale-invariant-spread",
        {"rope.window": 5, "scale-invariant-spread.learn_tau": True},
    ),
    "pattern of windows": (
        "scale-invariant-rope,logn-p-rope",
        {"scale-invariant-rope.window": 4, "logn-p-rope.window": 7},
    ),
    "pattern by context": ("nope,logn-ntk", {"nope.window": 6}),
    "fox with a window": ("fox", {"window": 4}),
    "yarn with a long ramp": (
        "yarn",
        {"base": 4.0, "fast_rotations": 1.5, "slow_rotations": 0.25},
    ),
}
# One case per kind of slot, for tests that take long: the others differ from one of these in numbers
# alone.
KINDS = [
    *("nope", "rope", "yarn", "logn-p-rope", "logn of the context, ntk", "alibi", "ape"),
    *("scale-invariant-p-rope", "scale-invariant-spread", "learned tau"),
    *("window", "pattern", "pattern by context", "fox", "fox with a window"),
    *("infini-p-rope", "delta rule"),
]
# Those that attention alone computes.
WITHOUT_MEMORY = [case for case in KINDS if CASES[case][0] not in ("infini-rope", "infini-p-rope")]
# Those that have a meaning without causality.
FOR_ENCODERS = [
    case for case, (name, _) in CASES.items() if name not in ("fox", "infini-rope", "infini-p-rope")
]
# Cases whose output depends on the context length.
BY_CONTEXT = [
    name
    for name in CASES
    if any(w in name for w in ("ntk", "yarn", "of the context", "by context"))
]
# Cases that depend on absolute positions, not only on their differences.
ABSOLUTE = [
    *("logn-rope", "logn-p-rope", "logn-ntk", "sqrt-log-n", "inkling", "llama4", "swan"),
    *("window", "pattern of windows", "pattern by context"),
]
# Cases of which no layer sees the whole text.
LOCAL = ["window", "pattern of windows", "fox with a window"]


def varied(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """All cases with the first of the values, and one per kind of slot with the others too."""
    return [(case, it) for case in CASES for it in (values if case in KINDS else values[:1])]


def tiny_config(case: str, heads: int = 3, **changes: Any) -> GPTConfig:
    scheme, options = CASES[case]
    sizes = {"vocab_size": VOCABULARY, "layers": 2, "width": 16 * heads, "heads": heads}
    return GPTConfig(
        **{
            **sizes,
            "scheme_name": scheme,
            "scheme_options": options,
            "train_length": TRAINED,
            **changes,
        }
    )


def tiny_model(
    case: str,
    dtype: torch.dtype = torch.float64,
    heads: int = 3,
    backend: str | None = None,
    layers: int = 2,
    is_causal: bool = True,
    **settings: Any,
) -> GPT:
    """A model without zero weights, whose learned scalars differ between heads.

    By default it runs on the reference in float64, and on the choice of "auto" otherwise.
    """
    if backend is None:
        backend = "reference" if dtype == torch.float64 else "auto"
    torch.manual_seed(heads)
    config = tiny_config(case, heads, layers=layers, is_causal=is_causal)
    model = GPT(config, backend=backend, **settings).double()
    generator = torch.Generator().manual_seed(heads)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.ndim == 2:
                weight.copy_(noise * (1.0 if weight.shape[0] == VOCABULARY else 0.2))
            else:
                weight.add_(0.3 * noise)
    return model.to(dtype)


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def plain_logits(
    model: GPT,
    tokens: Tensor,
    positions: list[int] | None = None,
    context_length: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Expected logits for the tokens ``[L]`` of one document, by the eager implementation."""
    config = model.config
    return eager_logits(
        model.state_dict(),
        config.scheme_name,
        tokens,
        heads=config.heads,
        train_length=config.train_length,
        options=dict(config.scheme_options),
        positions=positions,
        context_length=context_length,
        qk_norm=config.qk_norm,
        is_causal=config.is_causal,
        dtype=dtype,
    )


# Float64 sums in another order: dozens of roundings of numbers around ten, with some margin.
EXACT = {"rtol": 0.0, "atol": 1e-11}


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Assert equality up to float64 rounding."""
    torch.testing.assert_close(found, expected, **EXACT)
