"""The rotary of a scheme in transformers' own format, `rope_parameters` of a config.

p-RoPE is ``rope_type="proportional"`` with a ``partial_rotary_factor``; NoPE is the same with the factor
0; NTK is "dynamic" with the factor 1, and YaRN is "yarn" with a fixed factor.
"""

import copy
from typing import Any

from ..schemes import ProportionalRoPE, TruncatedRoPE, get, options
from ..schemes.frequencies import truncated_frequencies

Parameters = dict[str, Any]


def rope_parameters(
    scheme: str, given: Parameters, original: Parameters, head_dim: int, train_length: int
) -> Parameters:
    """The parameters of a scheme for a model that had `original` ones; `given` are its options.

    >>> rope_parameters("p-rope", {}, {"rope_type": "default", "rope_theta": 1e4}, 128, 4096)
    {'rope_type': 'proportional', 'rope_theta': 1639882.8..., 'partial_rotary_factor': 0.5}
    """
    if all(isinstance(part, dict) for part in original.values()):
        # Models with a rotary for each type of layer, as Gemma 3.
        return {
            kind: rope_parameters(scheme, given, part, head_dim, train_length)
            for kind, part in original.items()
        }
    if "nope" in scheme or scheme == "alibi":
        return _proportional(original.get("rope_theta", 10_000.0), 0.0)
    if "p-rope" in scheme:
        return _partial(scheme, given, head_dim)
    if "ntk" in scheme or scheme == "yarn":
        return _stretched(scheme, given, original, train_length)
    parameters = copy.deepcopy(original)
    if "base" in given:
        parameters["rope_theta"] = float(given["base"])
    return parameters


def _proportional(theta: float, fraction: float) -> Parameters:
    return {
        "rope_type": "proportional",
        "rope_theta": float(theta),
        "partial_rotary_factor": fraction,
    }


def _partial(scheme: str, given: Parameters, head_dim: int) -> Parameters:
    known = {name: given[name] for name in options("p-rope") if name in given}
    rotary = get("p-rope", **known).rotary
    if isinstance(rotary, ProportionalRoPE):
        rotary.frequencies(head_dim, 1)
        return _proportional(rotary.base, rotary.fraction)
    assert isinstance(rotary, TruncatedRoPE)
    turning = int(truncated_frequencies(head_dim).count_nonzero())
    # One pair alone turns by 1, whatever the base.
    exponent = (head_dim / 2) / max(turning - 1, 1)
    return _proportional(rotary.base**exponent, 0.5)


def _stretched(
    scheme: str, given: Parameters, original: Parameters, train_length: int
) -> Parameters:
    if original.get("rope_type", "default") != "default":
        raise ValueError(
            f"scheme {scheme!r} changes plain RoPE, and this model's rotary is already "
            f"{original['rope_type']!r}: take another scheme"
        )
    parameters = copy.deepcopy(original)
    if "base" in given:
        parameters["rope_theta"] = float(given["base"])
    if scheme == "yarn":
        parameters |= {
            "rope_type": "yarn",
            "factor": float(given["factor"]),
            "original_max_position_embeddings": train_length,
            "beta_fast": float(given.get("fast_rotations", 32.0)),
            "beta_slow": float(given.get("slow_rotations", 1.0)),
        }
    else:
        parameters |= {"rope_type": "dynamic", "factor": 1.0}
    return parameters
