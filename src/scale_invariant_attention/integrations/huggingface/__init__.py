"""Models of Hugging Face transformers with scale-invariant attention.

Importing registers the attention implementation "scale_invariant"; a converted model is then loaded
by ``from_pretrained`` like any other.

>>> from transformers import AutoModelForCausalLM, LlamaConfig
>>> from scale_invariant_attention.integrations import huggingface
>>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
>>> model = huggingface.convert(AutoModelForCausalLM.from_config(config))
>>> model.config._attn_implementation, model.config.rope_parameters["rope_type"]
('scale_invariant', 'proportional')
"""

from importlib import import_module
from typing import Any

from .registration import register

register()

# Imported when they are asked for.
_HOMES = {
    "Calibration": "calibration",
    "convert": "conversion",
    "measure_scores": "calibration",
}

__all__ = ["Calibration", "convert", "measure_scores"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
