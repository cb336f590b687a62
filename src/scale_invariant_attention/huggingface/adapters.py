"""LoRA adapters on the linear layers of a model, and back into its weights."""

from typing import Any

from .slots import NAME


def with_adapters(model: Any, rank: int) -> Any:
    """A model whose weights stay, with adapters of a rank; what a scheme learns is refused."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("lora_rank needs the package peft: pip install peft") from missing

    learned = [name for name, _ in model.named_parameters() if f"{NAME}." in name]
    if learned:
        raise ValueError(
            f"lora_rank must be None for a scheme that learns numbers of its own, {learned[0]} and "
            f"others, which no adapter changes: train all weights, or take a scheme without"
        )
    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"
    )
    return get_peft_model(model, config)


def merged(model: Any) -> Any:
    """The model itself, with what its adapters learned in its weights."""
    return model.merge_and_unload()
