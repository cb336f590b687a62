"""Assignment of parameters to optimisers."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ParameterSplit:
    """The parameters of a GPT by name, each in one of four groups."""

    matrices: dict[str, nn.Parameter]
    """All matrices of the blocks: for Muon."""
    embedding: dict[str, nn.Parameter]
    """For Adam."""
    head: dict[str, nn.Parameter]
    """For Adam."""
    scalars: dict[str, nn.Parameter]
    """Parameters of schemes, such as LogN's scales or the logarithms of tau: for Adam."""


def parameter_split(model: nn.Module) -> ParameterSplit:
    """The parameters of a GPT, possibly wrapped or compiled, grouped by optimiser.

    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> split = parameter_split(GPT(GPTConfig.preset("mini", scheme_name="logn-rope")))
    >>> len(split.matrices), list(split.embedding), list(split.head), len(split.scalars)
    (24, ['embedding.weight'], ['head.weight'], 4)
    """
    split = ParameterSplit({}, {}, {}, {})
    for name, parameter in model.named_parameters():
        # Wrappers prepend their own names.
        parts = name.split(".")
        if "blocks" not in parts:
            group = split.embedding if "embedding" in parts else split.head
        else:
            group = split.scalars if belongs_to_scheme(name) else split.matrices
        group[name] = parameter
    return split


def belongs_to_scheme(name: str) -> bool:
    """Whether a parameter of a block belongs to its scheme.

    >>> belongs_to_scheme("0.attention.scheme.distance.log_tau"), belongs_to_scheme("0.mlp.up.weight")
    (True, False)
    """
    return "scheme" in name.split(".")
