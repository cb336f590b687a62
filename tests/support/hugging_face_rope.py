"""Rotary frequencies computed by transformers, to compare ours with."""

import pytest


def hugging_face_frequencies(
    rope_type, head_dim, *, base=10_000.0, train_length=4096, context_length=None, **parameters
):
    """Frequencies ``[head_dim / 2]``, float32, and the factor of queries and keys."""
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=train_length,
        rope_parameters={"rope_type": rope_type, "rope_theta": base, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[rope_type](config, None, seq_len=context_length)
