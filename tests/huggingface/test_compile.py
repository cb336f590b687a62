"""Models compile as one graph, which serves other tokens, paddings and cache states of its shape."""

import pytest
import torch
from hugging_face_models import converted, left_padded, some_tokens, tiny
from torch._dynamo.testing import CompileCounter
from transformers import CompileConfig, StaticCache

from scale_invariant_attention import huggingface

LENGTH = 15


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def padded(short):
    return left_padded([some_tokens(LENGTH), some_tokens(short, seed=1)])


@pytest.mark.parametrize("family", ["gemma3", pytest.param("llama", marks=pytest.mark.slow)])
@torch.no_grad()
def test_a_forward_pass_is_one_graph(family):
    model, counter = converted(family), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for short in (LENGTH, 11, 6):
        ids, mask = padded(short)
        got = compiled(input_ids=ids, attention_mask=mask, use_cache=False).logits
        expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        assert torch.equal(got[mask.bool()], expected[mask.bool()])
    assert counter.frame_count == 1


@torch.no_grad()
def test_a_decoding_step_is_one_graph_for_every_step():
    model, counter = tiny(num_hidden_layers=1), CompileCounter()
    model.set_attn_implementation("scale_invariant")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    ids = some_tokens(2, LENGTH)
    cache = StaticCache(config=model.config, max_cache_len=24)
    model(ids[:, :8], past_key_values=cache)
    for step in range(8, LENGTH):
        positions = torch.full((2, 1), step)
        token = ids[:, step : step + 1].contiguous()
        got = compiled(token, position_ids=positions, past_key_values=cache).logits
        expected = model(ids[:, : step + 1], use_cache=False).logits[:, -1:]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.slow
def test_training_compiles():
    model = converted()
    ids = some_tokens(2, LENGTH)
    model(ids, labels=ids, use_cache=False).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_compiled_model_also_refuses_wrong_positions():
    model = huggingface.convert(tiny(num_hidden_layers=1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=24)
    model(some_tokens(1, 8), past_key_values=cache)
    with pytest.raises((ValueError, RuntimeError), match="position_ids must number"):
        compiled(some_tokens(1, 1), position_ids=torch.tensor([[77]]), past_key_values=cache)


@pytest.mark.slow
def test_generate_compiles_its_steps():
    model = converted()
    ids = some_tokens(2, LENGTH)
    greedy = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **greedy)
    compiled = CompileConfig(fullgraph=True, backend="aot_eager", mode=None)
    # On CPUs transformers compiles only on request.
    compiled._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    static = {"cache_implementation": "static", "compile_config": compiled}
    assert torch.equal(model.generate(ids, **greedy, **static), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
