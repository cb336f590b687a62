"""Our GPT made known to the Auto classes of transformers, once."""

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from .gpt_config import MODEL_TYPE, ScaleInvariantGPTConfig
from .gpt_model import ScaleInvariantGPTForCausalLM

AutoConfig.register(MODEL_TYPE, ScaleInvariantGPTConfig, exist_ok=True)
AutoModelForCausalLM.register(ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM, exist_ok=True)
AutoTokenizer.register(
    ScaleInvariantGPTConfig, tokenizer_class=PreTrainedTokenizerFast, exist_ok=True
)

__all__ = ["ScaleInvariantGPTConfig", "ScaleInvariantGPTForCausalLM"]
