"""Scale-invariant attention in Hugging Face transformers, and our GPT as a transformers model.

Importing this package registers the attention implementation "scale_invariant", so that
``from_pretrained`` loads a converted model like any other, and our GPT with the Auto classes.

>>> from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
>>> from scale_invariant_attention import huggingface
>>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
>>> model = huggingface.convert(AutoModelForCausalLM.from_config(config))
>>> model.config._attn_implementation, model.config.rope_parameters["rope_type"]
('scale_invariant', 'proportional')
>>> AutoConfig.for_model("scale_invariant_gpt", scheme_name="alibi").scheme_name
'alibi'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import register_module_module_registration_hook

if TYPE_CHECKING:
    from ._conversion import convert
    from ._gpt_model import ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM
    from ._scores import Calibration, measure_scores, transformers_scores
    from .continued_pretraining import PretrainingRecipe, continue_pretraining
    from .export import open_from_transformers, save_for_transformers
    from .extension import Extension, extend

# Imported on first use.
_HOMES = {
    "Calibration": "_scores",
    "Extension": "extension",
    "PretrainingRecipe": "continued_pretraining",
    "ScaleInvariantGPTConfig": "_gpt_model",
    "ScaleInvariantGPTForCausalLM": "_gpt_model",
    "continue_pretraining": "continued_pretraining",
    "convert": "_conversion",
    "extend": "extension",
    "fine_tune_on_task": "continued_pretraining",
    "measure_scores": "_scores",
    "open_from_transformers": "export",
    "save_for_transformers": "export",
    "transformers_scores": "_scores",
}

__all__ = [
    "Calibration",
    "Extension",
    "PretrainingRecipe",
    "ScaleInvariantGPTConfig",
    "ScaleInvariantGPTForCausalLM",
    "continue_pretraining",
    "convert",
    "extend",
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


def _register() -> None:
    """Register the attention, its mask and our GPT with transformers."""
    try:
        import transformers
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "the Hugging Face integration needs transformers 5 or newer: "
            "pip install 'scale-invariant-attention[huggingface]'"
        ) from error
    from ._attention import attention_forward, set_scheme_when_built
    from ._gpt_model import ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM
    from ._layered_rotary import layered_when_built
    from ._visibility import attention_mask
    from .settings import IMPLEMENTATION, SAVED_IMPLEMENTATION

    for name in (IMPLEMENTATION, SAVED_IMPLEMENTATION):
        transformers.AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, attention_mask)
    # transformers offers no way for a config to add modules to a layer, and they must exist before
    # weights are loaded. This hook is torch's own; it runs as layers are assembled.
    register_module_module_registration_hook(set_scheme_when_built)
    register_module_module_registration_hook(layered_when_built)  # type: ignore[arg-type]  # may replace
    config, model = ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM
    tokenizer = transformers.PreTrainedTokenizerFast
    transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
    transformers.AutoModelForCausalLM.register(config, model, exist_ok=True)
    transformers.AutoTokenizer.register(config, tokenizer_class=tokenizer, exist_ok=True)


_register()
