"""Small GPTs of every scheme as models of transformers, around the same weights."""

import torch
from tiny_models import tiny_model

from scale_invariant_attention.huggingface import ScaleInvariantGPTForCausalLM


def wrapped(case, dtype=torch.float64, **others):
    """A model of transformers, and with `gpt` ours."""
    return ScaleInvariantGPTForCausalLM.of(tiny_model(case, dtype), **others).eval()


def left_padding(lengths, total):
    """A mask ``[B, total]`` with so many tokens at the end of each row."""
    return torch.stack([torch.arange(total) >= total - length for length in lengths]).long()
