"""Scale-invariant attention: train on short contexts, work on long ones.

>>> import torch
>>> import scale_invariant_attention as sia
>>> query, key, value = torch.randn(3, 1, 8, 256, 64).unbind()
>>> sia.scale_invariant_attention(query, key, value).shape
torch.Size([1, 8, 256, 64])
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import attention, model, schemes, theory
    from .attention import (
        DistanceAffine,
        available_backends,
        backend_for,
        distance_affine_attention,
        run_self_checks,
        scale_invariant_attention,
        unavailable_backends,
    )
    from .attention.context_parallel import (
        SequenceLayout,
        SequenceShard,
        context_parallel_attention,
        shard_sequence,
        unshard_sequence,
    )
    from .schemes import p_rope

    __version__: str

__all__ = [
    "DistanceAffine",
    "SequenceLayout",
    "SequenceShard",
    "__version__",
    "attention",
    "available_backends",
    "backend_for",
    "context_parallel_attention",
    "distance_affine_attention",
    "model",
    "p_rope",
    "run_self_checks",
    "scale_invariant_attention",
    "schemes",
    "shard_sequence",
    "theory",
    "unavailable_backends",
    "unshard_sequence",
]
# Public names that are not in the package of the op itself.
ELSEWHERE = {"p_rope": "schemes"} | dict.fromkeys(
    (
        *("SequenceLayout", "SequenceShard", "context_parallel_attention"),
        *("shard_sequence", "unshard_sequence"),
    ),
    "attention.context_parallel",
)


def __getattr__(name: str) -> object:
    """Load a public name on first use: importing torch takes seconds, and `sia --help` needs none."""
    from importlib import import_module, metadata

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object
    if name == "__version__":
        value = metadata.version("scale-invariant-attention")
    elif name in ("attention", "model", "schemes", "theory"):
        value = import_module(f".{name}", __name__)
    else:
        package = ELSEWHERE.get(name, "attention")
        value = getattr(import_module(f".{package}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
