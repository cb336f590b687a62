"""Makes the Auto classes of transformers know our GPT."""


def register_gpt() -> None:
    """Register configuration, model and tokenizer; once more does no harm."""
    try:
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoTokenizer,
            PreTrainedTokenizerFast,
        )
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "this needs transformers 5 or newer; install it with: "
            'pip install "scale-invariant-attention[huggingface]"'
        ) from missing
    from .gpt_config import MODEL_TYPE, ScaleInvariantGPTConfig
    from .gpt_model import ScaleInvariantGPTForCausalLM

    config, model = ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM
    AutoConfig.register(MODEL_TYPE, config, exist_ok=True)
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    AutoTokenizer.register(config, tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)
