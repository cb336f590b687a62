"""Makes transformers know the attention implementation, and models with a scheme in their config."""

from torch.nn.modules.module import register_module_module_registration_hook


def register() -> None:
    """Register attention and mask under one name, and have converted models built with their scheme."""
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "the Hugging Face integration needs transformers 5 or newer: "
            "pip install 'scale-invariant-attention[huggingface]'"
        ) from error
    from .attention import attention_forward
    from .masks import attention_mask
    from .settings import IMPLEMENTATION
    from .slots import fill_when_built

    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, attention_mask)
    # transformers has no place for what a config adds to a layer, and what is added must be there
    # before weights are loaded into it. This hook is torch's own; it runs as layers are put together.
    register_module_module_registration_hook(fill_when_built)
