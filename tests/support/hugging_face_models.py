"""Tiny random transformers models, and attention by definition to compare them with."""

import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3Config,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from scale_invariant_attention import huggingface

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    # Far larger than usual, so that attention has something to choose from.
    "initializer_range": 0.3,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
BOTH = {
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
    "tie_word_embeddings": False,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**GROUPED),
    "qwen3": lambda: Qwen3Config(**GROUPED, head_dim=16),
    "mistral": lambda: MistralConfig(**GROUPED, sliding_window=5),
    "gemma2": lambda: Gemma2Config(**GROUPED, **BOTH, head_dim=16, query_pre_attn_scalar=16),
    "gemma3": lambda: Gemma3TextConfig(**GROUPED, **BOTH, head_dim=16, query_pre_attn_scalar=16),
    "gpt-neox": lambda: GPTNeoXConfig(**SIZES),
    "mixtral": lambda: MixtralConfig(**GROUPED, num_local_experts=2),
    "gpt-oss": lambda: GptOssConfig(
        **GROUPED, **BOTH, head_dim=16, num_local_experts=4, num_experts_per_tok=2
    ),
}
FAMILIES = [name for name in CONFIGS if name != "gemma2"]


def tiny(family="llama", *, seed=0, **changes):
    """A model with plain attention, in evaluation mode."""
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    # transformers' fast experts do not support float64.
    experts = {"experts_implementation": "eager"} if "num_local_experts" in config.to_dict() else {}
    return AutoModelForCausalLM.from_config(config, **experts).eval()


def converted(family="llama", scheme="scale-invariant-p-rope", **options):
    """A tiny model, converted to a scheme."""
    return huggingface.convert(tiny(family), scheme, **options)


def some_tokens(*shape, seed=0):
    """Token ids that are not padding."""
    return torch.randint(1, 96, shape, generator=torch.Generator().manual_seed(seed))


def left_padded(rows):
    """Left-padded batch of sequences: ids and attention mask."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = row
        mask[number, longest - len(row) :] = 1
    return ids, mask


def transform(distance):
    """Gain and bias of the paper at tau = 10, written out."""
    growth = torch.log(distance / 10 + 1)
    return torch.sqrt(1 + 2 * growth), -2 * growth


def definition(module, query, key, value, attention_mask, *, scaling, position_ids, **others):
    """Attention by definition, in the model's dtype, with the positions and mask of transformers.

    `module.definition` has its functions of distance and of position.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
    position_ids = position_ids.expand(query.shape[0], -1)
    distance = (position_ids[:, None, :, None] - position_ids[:, None, None, :]).to(query.dtype)
    gain, bias = module.definition["distance"](distance.clamp(min=0))
    scores = query @ key.transpose(2, 3) * scaling * module.definition["query"](position_ids)
    logits = (gain * scores + bias).masked_fill(~attention_mask, -torch.inf)
    if others.get("s_aux") is not None:
        sink = others["s_aux"].reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        weights = torch.cat([logits, sink], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    # Padding sees no key, so its softmax is NaN.
    return (weights.nan_to_num() @ value).transpose(1, 2).contiguous(), None


def whole_mask(*arguments, **named):
    """transformers' full mask of query-key pairs, never skipped."""
    return sdpa_mask(*arguments, **{**named, "allow_is_causal_skip": False})


def by_definition(model, distance=transform, query=lambda position_ids: 1.0):
    """Switch a model to attention by definition, keeping its rotary embedding."""
    AttentionInterface.register("definition", definition)
    AttentionMaskInterface.register("definition", whole_mask)
    model.set_attn_implementation("definition")
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.definition = {"distance": distance, "query": query}
    return model
