"""Our GPT in transformers: importing this makes the Auto classes know it.

>>> from transformers import AutoConfig
>>> from scale_invariant_attention.integrations import huggingface
>>> AutoConfig.for_model("scale_invariant_gpt", scheme="alibi").scheme
'alibi'
"""

from importlib import import_module
from typing import Any

from .gpt_registration import register_gpt

register_gpt()

# Imported when they are asked for.
_HOMES = {
    "ScaleInvariantGPTConfig": "gpt_config",
    "ScaleInvariantGPTForCausalLM": "gpt_model",
    "open_from_transformers": "export",
    "save_for_transformers": "export",
}

__all__ = [
    "ScaleInvariantGPTConfig",
    "ScaleInvariantGPTForCausalLM",
    "open_from_transformers",
    "save_for_transformers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
