"""Positions and visibility are computed once per forward pass and window, and never outlive it."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hugging_face_models import converted, left_padded, some_tokens, tiny

from scale_invariant_attention import huggingface
from scale_invariant_attention.huggingface import _visibility

LENGTH = 23


@pytest.fixture
def computed(monkeypatch):
    """The windows for which a layout was computed."""
    windows = []
    compute = _visibility._computed_layout

    def counted(*arguments):
        windows.append(arguments[-1])
        return compute(*arguments)

    monkeypatch.setattr(_visibility, "_computed_layout", counted)
    return windows


@pytest.mark.parametrize(
    ("family", "windows"),
    [("llama", [None]), ("mistral", [5]), ("gemma3", [5, None]), ("gpt-oss", [5, None])],
)
def test_one_computation_per_window_and_forward_pass(family, windows, computed):
    changes = {"num_hidden_layers": 4}
    if len(windows) == 2:
        changes["layer_types"] = 2 * ["sliding_attention", "full_attention"]
    model = huggingface.convert(tiny(family, **changes))
    ids, mask = left_padded([some_tokens(LENGTH), some_tokens(11, seed=1)])
    for arguments in ({}, {"attention_mask": mask}, {"use_cache": False}):
        with torch.no_grad():
            model(ids, **arguments)
        assert computed == windows
        computed.clear()
    model.train()(ids, attention_mask=mask, labels=ids).loss.backward()
    assert computed == windows


def test_one_computation_per_generated_token(computed):
    ids, mask = left_padded([some_tokens(9), some_tokens(4, seed=1)])
    model = converted("gemma3")
    model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)
    assert computed == 3 * [5, None]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_reuse_the_layout(reentrant, computed):
    model = converted("gemma3").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    ids = some_tokens(2, LENGTH)
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert computed == [5, None]


def test_a_mask_of_pairs_is_read_once_and_again_after_it_changed(computed):
    model, ids = converted(), some_tokens(2, LENGTH)
    positions = torch.arange(LENGTH)[None]
    pairs = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        whole = model(ids, attention_mask=pairs, position_ids=positions).logits
        assert computed == [None]
        pairs[..., 9:, :9] = False
        split = model(ids, attention_mask=pairs, position_ids=positions).logits
        assert computed == [None, None]
        assert torch.equal(split, model(ids, attention_mask=pairs.clone()).logits)
        positions += 3 * (positions > 4)
        stretched = model(ids, attention_mask=pairs, position_ids=positions).logits
    assert not torch.allclose(whole, split, atol=1e-3)
    assert not torch.allclose(split, stretched, atol=1e-3)


def test_inference_tensors_are_read_in_every_layer(computed):
    model, ids = converted(), some_tokens(2, LENGTH)
    with torch.no_grad():
        expected = model(ids).logits
    computed.clear()
    with torch.inference_mode():
        assert torch.equal(model(ids.clone()).logits, expected)
    assert computed == [None, None]


@pytest.mark.parametrize("cached", [False, True])
def test_nothing_outlives_the_forward_pass(cached):
    model, masks = converted("gemma3"), []

    def copy_mask(module, given, named):
        """As when a layer is on another device."""
        mask = named["attention_mask"].clone()
        masks.append(weakref.ref(mask))
        return given, {**named, "attention_mask": mask}

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(copy_mask, with_kwargs=True)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            cache = model(some_tokens(1, 6), use_cache=cached).past_key_values
            if cached:
                model(some_tokens(1, 3), past_key_values=cache)
        assert len(masks) == (4 if cached else 2)
        assert all(mask() is None for mask in masks)
    finally:
        gc.enable()


def test_threads_and_models_do_not_mix():
    models = [converted("gemma3"), converted("llama", "alibi")]
    rows = [left_padded([some_tokens(LENGTH), some_tokens(n, seed=n)]) for n in range(5, 17)]

    def run(case):
        model, (ids, mask) = case
        with torch.no_grad():
            return model(ids, attention_mask=mask).logits

    cases = [(model, row) for row in rows for model in models]
    expected = [run(case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(run, cases), expected))
