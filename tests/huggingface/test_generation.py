"""`generate` returns the same tokens with every cache and search as without a cache."""

import pytest
import torch
from hugging_face_models import FAMILIES, converted, left_padded, some_tokens, tiny

from scale_invariant_attention import huggingface

NEW = 12


def prompt():
    ids, mask = left_padded([some_tokens(9), some_tokens(4, seed=1)])
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "do_sample": False}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_is_the_same_with_and_without_a_cache(family, cache):
    model = converted(family)
    expected = model.generate(**prompt(), use_cache=False)
    got = model.generate(**prompt(), cache_implementation=cache, disable_compile=True)
    assert torch.equal(got, expected)
    # Random models tend to repeat themselves; these do not.
    assert got[:, 9:].unique().numel() > 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="transformers offloads from CUDA devices")
@pytest.mark.parametrize("cache", ["offloaded", "offloaded_static"])
def test_offloaded_caches(cache):
    model = converted("gemma3").cuda()
    inputs = {**prompt(), "input_ids": prompt()["input_ids"].cuda()}
    inputs["attention_mask"] = inputs["attention_mask"].cuda()
    expected = model.generate(**inputs, use_cache=False)
    got = model.generate(**inputs, cache_implementation=cache, disable_compile=True)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_beam_search(family):
    model = converted(family)
    several = {"num_beams": 3, "num_return_sequences": 2}
    expected = model.generate(**prompt(), **several, use_cache=False)
    for cache in ("dynamic", "static"):
        named = {"cache_implementation": cache, "disable_compile": True}
        assert torch.equal(model.generate(**prompt(), **several, **named), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_assisted_decoding(family):
    model = converted(family)
    ids = some_tokens(1, 9)
    greedy = {"max_new_tokens": NEW, "do_sample": False}
    expected = model.generate(ids, **greedy)
    assistant = huggingface.convert(tiny(family, seed=1))
    assert torch.equal(model.generate(ids, **greedy, assistant_model=assistant), expected)
    assert torch.equal(model.generate(ids, **greedy, prompt_lookup_num_tokens=2), expected)


def test_prompts_in_chunks():
    model = converted()
    expected = model.generate(**prompt())
    assert torch.equal(model.generate(**prompt(), prefill_chunk_size=3), expected)


def test_a_row_of_a_batch_is_continued_as_alone():
    model = converted("gemma3")
    together = model.generate(**prompt())
    alone = model.generate(some_tokens(1, 4, seed=1), max_new_tokens=NEW, do_sample=False)
    assert torch.equal(together[1, 5:], alone[0])


def test_quantised_caches_run_where_their_library_is_installed():
    model = converted()
    named = {"cache_implementation": "quantized", "cache_config": {"backend": "quanto", "nbits": 4}}
    try:
        import optimum.quanto  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="quanto"):
            model.generate(**prompt(), **named)
    else:
        assert model.generate(**prompt(), **named).shape[1] == 9 + NEW
