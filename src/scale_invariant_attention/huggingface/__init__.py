"""Models of Hugging Face transformers with scale-invariant attention, and our GPT as one of theirs.

Importing registers the attention implementation "scale_invariant", so that a converted model is loaded
by ``from_pretrained`` like any other, and makes the Auto classes know our GPT.

>>> from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
>>> from scale_invariant_attention import huggingface
>>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
>>> model = huggingface.convert(AutoModelForCausalLM.from_config(config))
>>> model.config._attn_implementation, model.config.rope_parameters["rope_type"]
('scale_invariant', 'proportional')
>>> AutoConfig.for_model("scale_invariant_gpt", scheme="alibi").scheme
'alibi'
"""

from importlib import import_module
from typing import Any

from .gpt_registration import register_gpt
from .registration import register

register()
register_gpt()

# Imported when they are asked for.
_HOMES = {
    "Calibration": "calibration",
    "PretrainingRecipe": "continued_pretraining",
    "ScaleInvariantGPTConfig": "gpt_config",
    "ScaleInvariantGPTForCausalLM": "gpt_model",
    "continue_pretraining": "continued_pretraining",
    "convert": "conversion",
    "measure_scores": "calibration",
    "open_from_transformers": "export",
    "save_for_transformers": "export",
    "transformers_scores": "observing",
}

__all__ = [
    "Calibration",
    "PretrainingRecipe",
    "ScaleInvariantGPTConfig",
    "ScaleInvariantGPTForCausalLM",
    "continue_pretraining",
    "convert",
    "measure_scores",
    "open_from_transformers",
    "save_for_transformers",
    "transformers_scores",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
