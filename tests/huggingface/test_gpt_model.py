"""Calls with the arguments of transformers equal calls of our GPT."""

import pytest
import torch
from tiny_models import ABSOLUTE, TRAINED, WITHOUT_MEMORY, assert_same, random_tokens
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers_gpt import left_padding, wrapped

from scale_invariant_attention.huggingface import (
    ScaleInvariantGPTConfig,
    ScaleInvariantGPTForCausalLM,
)
from scale_invariant_attention.model import GPT

LENGTH = TRAINED + 8


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_logits_are_bit_identical_to_ours(case):
    model, tokens = wrapped(case, torch.float32), random_tokens(2, LENGTH)
    expected = model.gpt(tokens)
    for options in (
        {},
        {"use_cache": False},
        {"attention_mask": torch.ones_like(tokens)},
        {"position_ids": torch.arange(LENGTH)[None]},
        {"labels": tokens},
    ):
        assert torch.equal(model(tokens, **options).logits, expected)
    assert torch.equal(model(tokens, logits_to_keep=3).logits, expected[:, -3:])


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_padding_on_either_side_changes_nothing(case):
    model, lengths = wrapped(case), (LENGTH, 5)
    left = left_padding(lengths, LENGTH)
    for mask in (left, left.flip(1)):
        tokens = random_tokens(2, LENGTH)
        logits = model(tokens, attention_mask=mask).logits
        for row, kept in enumerate(mask.bool()):
            assert_same(logits[row, kept], model(tokens[row, kept][None]).logits[0])


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_later_tokens_never_change_earlier_outputs(case):
    model, tokens = wrapped(case), random_tokens(1, LENGTH)
    other = tokens.clone()
    other[:, 9:] = random_tokens(1, LENGTH - 9, seed=1)
    for options in ({}, {"position_ids": 3 * torch.arange(LENGTH)[None]}):
        first, second = (model(it, **options).logits for it in (tokens, other))
        assert torch.equal(first[:, :9], second[:, :9])
        assert not torch.equal(first[:, 9:], second[:, 9:])


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "logn-ntk"])
def test_position_ids_that_restart_begin_a_document(case):
    model, tokens = wrapped(case), random_tokens(1, LENGTH)
    counted = torch.cat([torch.arange(7), torch.arange(LENGTH - 7)])[None]
    packed = model(tokens, position_ids=counted)
    assert_same(packed.logits[:, :7], model(tokens[:, :7]).logits)
    assert_same(packed.logits[:, 7:], model(tokens[:, 7:]).logits)
    assert packed.past_key_values is None
    shifted = model(tokens, position_ids=counted + 4).logits
    assert torch.allclose(shifted, packed.logits) == (case not in ABSOLUTE)


def test_labels_are_the_tokens_themselves():
    model, tokens = wrapped("learned tau", torch.float32), random_tokens(3, LENGTH)
    labels = tokens.clone()
    labels[0, 5:9] = -100
    expected = model.gpt(tokens[:, :-1], targets=labels[:, 1:])
    out = model(tokens, labels=labels)
    torch.testing.assert_close(out.loss, expected)
    shifted = torch.cat([labels[:, 1:], torch.full((3, 1), -100)], 1)
    assert torch.equal(model(tokens, shift_labels=shifted).loss, out.loss)
    counted = (shifted != -100).sum()
    torch.testing.assert_close(
        model(tokens, labels=labels, num_items_in_batch=2 * counted).loss, expected / 2
    )
    ignored = torch.full_like(tokens, -100)
    assert model(tokens, labels=ignored).loss == 0


def test_a_training_step_returns_no_logits_by_default():
    model, tokens = wrapped("rope", torch.float32).train(), random_tokens(2, 6)
    assert model(tokens, labels=tokens).logits is None
    assert model(tokens, labels=tokens, skip_logits=False).logits is not None
    assert model(tokens).logits is not None


def test_a_head_with_an_adapter_is_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model, tokens = wrapped("rope", torch.float32), random_tokens(2, 6)
    plain = model.gpt.head
    model.gpt.head = Doubled(plain.in_features, plain.out_features, bias=False)
    model.gpt.head.weight = plain.weight
    out = model(tokens, labels=tokens)
    logits = out.logits[:, :-1].flatten(0, 1)
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(logits, tokens[:, 1:].ravel()))


def test_embeddings_as_input_and_hidden_states():
    model, tokens = wrapped("alibi"), random_tokens(2, 6)
    embedded = model.get_input_embeddings()(tokens)
    out = model(inputs_embeds=embedded, output_hidden_states=True)
    assert torch.equal(out.logits, model(tokens).logits)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(model.gpt.logits(out.hidden_states[-1]), out.logits)
    assert not model.gpt.blocks[0]._forward_pre_hooks
    names = [type(part) for part in model(tokens, return_dict=False)]
    assert names == [torch.Tensor, DynamicCache]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output_attentions": True}, ValueError, "never stores its weights"),
        ({"attention_mask": torch.ones(2, 1, 6, 6)}, ValueError, r"must be \[2, 6\]"),
        ({"attention_mask": torch.ones(2, 5)}, ValueError, r"must be \[2, 6\]"),
        ({"inputs_embeds": torch.ones(2, 6, 48)}, ValueError, "either input_ids or"),
        ({"past_key_values": ((), ())}, TypeError, "transformers Cache"),
        ({"position_ids": torch.ones(2, 5)}, ValueError, "must be integers"),
        ({"context_length": 0}, ValueError, "got 0"),
        (
            {
                "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]),
                "attention_mask": torch.ones(2, 6),
            },
            ValueError,
            "must rise",
        ),
        (
            {
                "position_ids": torch.tensor([[5, 6, 7, 8, 9, 10]]),
                "past_key_values": DynamicCache(),
            },
            ValueError,
            "position_ids that count",
        ),
    ],
)
def test_unsupported_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        wrapped("rope")(random_tokens(2, 6), **options)


def test_checkpointing_gives_the_same_gradients():
    model, tokens = wrapped("learned tau").train(), random_tokens(2, 9)

    def gradients():
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    expected = gradients()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    found = gradients()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(ValueError, match="gradient checkpointing"):
        model(tokens, past_key_values=DynamicCache())
    model.gradient_checkpointing_disable()
    assert not model.gpt.checkpoint_activations


def test_a_new_model_is_initialised_like_ours():
    """Compared by statistics, because the random numbers differ."""
    for case in ("logn-rope", "learned tau"):
        config = wrapped(case).config
        torch.manual_seed(0)
        new, ours = ScaleInvariantGPTForCausalLM(config), GPT(config.gpt())
        for name, weight in ours.named_parameters():
            found = new.gpt.get_parameter(name)
            torch.testing.assert_close(found.mean(), weight.mean(), atol=0.05, rtol=0)
            torch.testing.assert_close(found.std(), weight.std(), atol=0.05, rtol=0)
            torch.testing.assert_close(
                found.abs().max(), weight.abs().max(), atol=1e-3 if found.ndim == 1 else 2, rtol=0
            )


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_saving_and_loading_changes_nothing(case, tmp_path):
    model, tokens = wrapped(case, torch.float32), random_tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, ScaleInvariantGPTForCausalLM)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_other_dtypes_and_missing_weights(tmp_path, caplog):
    model = wrapped("logn-rope", torch.float32)
    weights = model.state_dict()
    for name in list(weights):
        if "query_scale" in name or name.endswith("head.weight"):
            del weights[name]
    model.save_pretrained(tmp_path, state_dict=weights)
    again = ScaleInvariantGPTForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert again.dtype == torch.bfloat16
    assert again.gpt.head.weight.count_nonzero() == 0
    start = model.gpt.scheme.query_scale.start
    scale = again.gpt.blocks[1].attention.scheme.query_scale.scale
    torch.testing.assert_close(scale, torch.full_like(scale, start))
    kept = again.gpt.blocks[1].mlp.up.weight
    assert torch.equal(kept, model.gpt.blocks[1].mlp.up.weight.bfloat16())
    assert again(random_tokens(1, 4)).logits.dtype == torch.float32


def test_the_vocabulary_can_grow():
    model, tokens = wrapped("rope", torch.float32), random_tokens(1, 6)
    before = model(tokens).logits
    model.resize_token_embeddings(64)
    assert model.config.vocab_size == model.gpt.config.vocab_size == 64
    after = model(tokens).logits
    torch.testing.assert_close(after[..., : before.shape[-1]], before)
    model(torch.tensor([[63]]))


def test_sizes_have_transformers_names():
    config = ScaleInvariantGPTConfig(
        vocab_size=64,
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        scheme_name="nope",
    )
    model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() == 64 * 32 * 2 + 12 * 32 * 32
