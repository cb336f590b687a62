"""Small GPTs of every scheme as transformers models that share their weights."""

import torch
from tiny_models import tiny_model

from scale_invariant_attention.huggingface import ScaleInvariantGPTForCausalLM


def wrapped(case, dtype=torch.float64, **others):
    """A transformers model; its `gpt` attribute is the wrapped GPT."""
    return ScaleInvariantGPTForCausalLM.of(tiny_model(case, dtype), **others).eval()


def left_padding(lengths, total):
    """Mask ``[B, total]`` of rows whose last `lengths[row]` tokens are real."""
    return torch.stack([torch.arange(total) >= total - length for length in lengths]).long()
