"""`generate` of transformers returns the tokens of our `generate`, with every search and cache."""

import pytest
import torch
from tiny_models import WITHOUT_MEMORY, random_tokens
from transformers import DynamicCache, pipeline
from transformers_gpt import left_padding, wrapped

from scale_invariant_attention.huggingface._gpt_model import (
    ScaleInvariantGPTForCausalLM,
)
from scale_invariant_attention.huggingface.export import byte_tokenizer
from scale_invariant_attention.model import GPT, GPTConfig

# With a prompt of 7 tokens, beyond the training length.
NEW = 8


def greedy(model, tokens, **options):
    return model.generate(tokens, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_greedy_search_equals_ours(case):
    model, tokens = wrapped(case), random_tokens(2, 7)
    assert torch.equal(greedy(model, tokens), model.gpt.generate(tokens, NEW))
    mask = left_padding((7, 3), 7)
    expected = model.gpt.generate(tokens, NEW, token_mask=mask.bool())
    assert torch.equal(greedy(model, tokens, attention_mask=mask), expected)


@pytest.mark.parametrize("case", ["learned tau", "yarn", "logn of the context", "fox"])
def test_every_cache_gives_the_same_tokens(case):
    model, tokens, mask = wrapped(case), random_tokens(2, 7), left_padding((7, 3), 7)
    expected = model.gpt.generate(tokens, NEW, token_mask=mask.bool())
    for options in ({"use_cache": False}, {"cache_implementation": "static"}):
        assert torch.equal(greedy(model, tokens, attention_mask=mask, **options), expected)


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "yarn", "logn of the context", "fox"])
def test_searches_are_the_same_with_and_without_a_cache(case):
    model, tokens, mask = wrapped(case), random_tokens(2, 7), left_padding((7, 3), 7)
    for options in ({"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}):
        with_cache, without = (
            greedy(model, tokens, attention_mask=mask, use_cache=used, **options)
            for used in (True, False)
        )
        assert torch.equal(with_cache, without)
    torch.manual_seed(0)
    sampled = model.generate(
        tokens,
        attention_mask=mask,
        max_new_tokens=NEW,
        do_sample=True,
        num_return_sequences=3,
        pad_token_id=0,
    )
    assert sampled.shape == (6, 7 + NEW)
    assert len({tuple(row) for row in sampled.tolist()}) > 2


@pytest.mark.parametrize("case", ["learned tau", "yarn", "fox"])
def test_assisted_generation_gives_the_same_tokens(case):
    model, tokens = wrapped(case), random_tokens(1, 7)
    assert torch.equal(greedy(model, tokens, assistant_model=wrapped(case)), greedy(model, tokens))
    looked_up = greedy(model, tokens, prompt_lookup_num_tokens=3)
    assert torch.equal(looked_up, greedy(model, tokens))


def test_it_stops_at_the_end_of_a_document_and_continues_from_a_cache():
    model, tokens = wrapped("rope"), random_tokens(1, 7)
    written = greedy(model, tokens)[0, 7:].tolist()
    end = written[4]
    stopped = greedy(model, tokens, eos_token_id=end)[0, 7:].tolist()
    assert stopped == written[: written.index(end) + 1]
    cache = DynamicCache(config=model.config)
    model(tokens, past_key_values=cache)
    longer = torch.cat([tokens, random_tokens(1, 2, seed=5)], 1)
    assert torch.equal(greedy(model, longer, past_key_values=cache), greedy(model, longer))


def test_embeddings_as_a_prompt():
    model, tokens = wrapped("rope-ntk"), random_tokens(1, 7)
    embedded = model.get_input_embeddings()(tokens)
    expected = model.gpt.generate(tokens, NEW)[:, 7:]
    found = model.generate(
        inputs_embeds=embedded, max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    assert torch.equal(found, expected)


def test_a_pipeline_generates_text():
    gpt = GPT(GPTConfig.preset("mini", layers=1, scheme_name="alibi"))
    torch.manual_seed(0)
    torch.nn.init.normal_(gpt.head.weight)
    model = ScaleInvariantGPTForCausalLM.of(gpt, eos_token_id=0, pad_token_id=0)
    writer = pipeline("text-generation", model=model, tokenizer=byte_tokenizer(), device="cpu")
    prompts = ["def main", "é"]
    found = writer(prompts, max_new_tokens=8, do_sample=False, batch_size=2)
    for prompt, (written,) in zip(prompts, found, strict=True):
        out = gpt.generate(torch.tensor([list(prompt.encode())]), 8, stop_tokens=[0])[0].tolist()
        text = bytes(token for token in out if token).decode(errors="replace")
        assert written["generated_text"] == text
