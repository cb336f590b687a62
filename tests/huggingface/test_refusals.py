"""Unsupported models and arguments are refused, with advice."""

import pytest
import torch
from hugging_face_models import converted, some_tokens, tiny
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    CodeGenConfig,
    DogeConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    Llama4TextConfig,
    MambaConfig,
    PersimmonConfig,
    Phi3Config,
    PhiConfig,
    Qwen3NextConfig,
    StaticCache,
    T5Config,
)

from scale_invariant_attention import huggingface

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 96}


def test_soft_caps():
    model = tiny("gemma2")
    with pytest.raises(NotImplementedError, match="attn_logit_softcapping = None"):
        huggingface.convert(model)
    model.set_attn_implementation("scale_invariant")
    with pytest.raises(NotImplementedError, match="softcap"):
        model(some_tokens(1, 5))
    without = huggingface.convert(tiny("gemma2", attn_logit_softcapping=None))
    assert without(some_tokens(1, 5)).logits.isfinite().all()


def test_schemes_with_a_memory():
    model = tiny()
    before = model.config.to_dict()
    with pytest.raises(NotImplementedError, match=r"'infini-rope' has a memory, .*sia train"):
        huggingface.convert(model, "infini-rope", segment_length=8)
    assert model.config.to_dict() == before
    with pytest.raises(
        ValueError, match=r"without a memory.*got 'infini-p-rope': use model.GPT itself"
    ):
        huggingface.ScaleInvariantGPTConfig(scheme_name="infini-p-rope", train_length=64)


def test_encoders():
    config = BertConfig(**SMALL, intermediate_size=32)
    model = AutoModel.from_config(config, attn_implementation="scale_invariant").eval()
    with pytest.raises((ValueError, NotImplementedError), match="encoder"):
        model(some_tokens(1, 5))


def test_encoders_with_decoders():
    config = T5Config(
        d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, vocab_size=96, pad_token_id=0
    )
    model = AutoModel.from_config(config)
    with pytest.raises(NotImplementedError, match="cross-attention"):
        huggingface.convert(model)


def test_bidirectional_models():
    config = Gemma3TextConfig(**SMALL, intermediate_size=32, head_dim=16)
    config.use_bidirectional_attention = True
    model = AutoModelForCausalLM.from_config(config, attn_implementation="scale_invariant")
    with pytest.raises((ValueError, NotImplementedError), match="causal"):
        model.eval()(some_tokens(1, 5))


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=96),
        BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=96),
        GPTJConfig(n_embd=32, n_layer=1, n_head=2, vocab_size=96, rotary_dim=8),
        CodeGenConfig(n_embd=32, n_layer=1, n_head=4, vocab_size=96, rotary_dim=4),
        MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=96),
    ],
    ids=lambda config: config.model_type,
)
def test_models_without_rotary(config):
    with pytest.raises(
        NotImplementedError, match=r"no rotary positions to replace .* such as Llama"
    ):
        huggingface.convert(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("scheme", ["scale-invariant-rope", "scale-invariant-p-rope"])
def test_models_that_do_not_pass_position_ids(scheme):
    persimmon = PersimmonConfig(**SMALL, intermediate_size=32, pad_token_id=0)
    llama4 = Llama4TextConfig(
        **SMALL,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=1,
        pad_token_id=0,
    )
    for config in (persimmon, llama4):
        model = AutoModelForCausalLM.from_config(config)
        with pytest.raises(NotImplementedError, match="does not pass position_ids"):
            huggingface.convert(model, scheme)


@pytest.mark.parametrize("kind", [PhiConfig, Phi3Config])
def test_models_with_a_fixed_rotary(kind):
    config = kind(**SMALL, intermediate_size=32, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids, before = some_tokens(1, 5), model.config.to_dict()
    for scheme in ("p-rope", "nope", "scale-invariant-p-rope"):
        with pytest.raises(NotImplementedError, match="keeps the model's own rotary"):
            huggingface.convert(model, scheme)
        assert model.config.to_dict() == before
    assert huggingface.convert(model, "scale-invariant-rope")(ids).logits.isfinite().all()


def test_a_model_with_the_settings_of_another():
    model = tiny()
    model.config.update(converted().config.to_dict())
    model.set_attn_implementation("scale_invariant")
    with pytest.raises(ValueError, match=r"but it was not.*build it from its config"):
        model(some_tokens(1, 5))


def test_a_part_of_a_model():
    whole = tiny()
    with pytest.raises(
        NotImplementedError, match=r"LlamaModel may be part of.*convert the whole model"
    ):
        huggingface.convert(whole.model)
    assert "scale_invariant_attention" not in whole.config.to_dict()


def test_masks_built_by_layers():
    config = DogeConfig(**SMALL, intermediate_size=32, pad_token_id=0)
    with pytest.raises(NotImplementedError, match="masks of their own"):
        huggingface.convert(AutoModelForCausalLM.from_config(config))


def test_calibration_of_layers_without_attention():
    config = Qwen3NextConfig(
        **{**SMALL, "num_hidden_layers": 4},
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        num_experts=0,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    model = huggingface.convert(AutoModelForCausalLM.from_config(config))
    with pytest.raises(NotImplementedError, match=r"layers \[0, 1, 2\] .* have no attention"):
        huggingface.measure_scores(model, [some_tokens(1, 12)])


def test_objects_that_are_not_transformers_models():
    with pytest.raises(TypeError, match="Linear"):
        huggingface.convert(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="got str: load it with from_pretrained"):
        huggingface.convert("models/llama")


def test_attention_weights():
    model = converted()
    with pytest.raises(NotImplementedError, match="output_attentions=False"):
        model(some_tokens(1, 5), output_attentions=True)


def test_dropout_in_training():
    field = r"config.json has attention_dropout 0\.1: set it to 0\.0 there"
    with pytest.warns(UserWarning, match=field):
        model = huggingface.convert(tiny(attention_dropout=0.1), tau=5.0)
    assert model(some_tokens(1, 5)).logits.isfinite().all()
    with pytest.raises(NotImplementedError, match=field):
        model.train()(some_tokens(1, 5))
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=96, attn_pdrop=0.2)
    gpt2 = AutoModelForCausalLM.from_config(config, attn_implementation="scale_invariant")
    with pytest.raises(NotImplementedError, match=r"config.json has attn_pdrop 0\.2"):
        gpt2.train()(some_tokens(1, 5))


def test_continuous_batching():
    model = converted()
    with pytest.raises(ValueError, match="not supported for continuous batching"):
        model.generate_batch([[1, 2, 3]], generation_config=model.generation_config)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(1, 1, 5, 5, dtype=torch.bool), "must be causal"),
        (torch.ones(1, 1, 5, 5, dtype=torch.long), "of bool or float"),
        (torch.full((1, 1, 5, 5), -1.5), "no other bias"),
        (torch.ones(1, 4, 5, 5, dtype=torch.bool), "must be"),
        (torch.eye(5, dtype=torch.bool)[None, None] | (torch.arange(5) == 0), "must be causal"),
    ],
)
def test_masks_of_pairs_with_other_patterns(mask, message):
    with pytest.raises(ValueError, match=message):
        converted()(some_tokens(1, 5), attention_mask=mask)


def test_a_mask_of_pairs_for_a_static_cache():
    model, pairs = converted(), torch.ones(5, 9, dtype=torch.bool).tril()
    cache = StaticCache(config=model.config, max_cache_len=9)
    with pytest.raises(ValueError, match="in a static cache"):
        model(some_tokens(1, 5), attention_mask=pairs[None, None], past_key_values=cache)


def test_a_layer_called_without_its_mask():
    model = converted()
    layer, hidden = model.model.layers[0].self_attn, torch.randn(1, 5, 64)
    position_ids = torch.arange(5)[None]
    rotation = model.model.rotary_emb(hidden, position_ids)
    with pytest.raises(ValueError, match="without the mask"):
        layer(hidden, position_embeddings=rotation, position_ids=position_ids)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    with pytest.raises(ValueError, match="without position_ids"):
        layer(hidden, position_embeddings=rotation, attention_mask=mask)
