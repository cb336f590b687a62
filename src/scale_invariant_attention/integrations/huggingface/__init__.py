"""Our models in transformers, and attention of ours in its models.

Importing this package makes the Auto classes of transformers know our GPT.
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "this needs the transformers library; install it with: "
        'pip install "scale-invariant-attention[huggingface]"'
    ) from missing

from .gpt_registration import ScaleInvariantGPTConfig, ScaleInvariantGPTForCausalLM

__all__ = ["ScaleInvariantGPTConfig", "ScaleInvariantGPTForCausalLM"]
