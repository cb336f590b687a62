"""FlexAttention for FLASH kernels: no tensor is captured, the program is right, the rest is refused.

The kernels themselves need a GPU. Here torch runs the same program without a fused kernel.
"""

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention.attention import DistanceAffine, Visibility, backends, flex_flash
from scale_invariant_attention.attention.contract import checked_call

CASES = {
    "causal": {},
    "not causal": {"is_causal": False},
    "window": {"window": 70},
    "window and sinks": {"window": 70, "sinks": 3},
    "sinks, not causal": {"is_causal": False, "sinks": 5},
    "fewer queries than keys": {"queries": 100},
    "more queries than keys": {"queries": 300},
    "other tau and scale": {"tau": 0.5, "scale": 0.3},
}


def case_call(queries=200, keys=200, tau=10.0, scale=None, **visibility):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, queries, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, keys, 16, generator=generator).unbind()
    tensors = (query, key, value)
    seen = Visibility(**visibility)
    return checked_call(*tensors, affine=None, tau=tau, visibility=seen, scale=scale)


@pytest.fixture(autouse=True, scope="module")
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("case", "query_block"),
    [*((name, 128) for name in CASES), ("window", 256), ("fewer queries than keys", 256)],
)
def test_the_program_is_right_and_captures_nothing(case, query_block):
    case = CASES[case]
    call = case_call(**case)
    kind = flex_flash.kind_of(call, return_lse=True, query_block=query_block)
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph.forward

    program = flex_flash.program(kind, None)
    compiled = torch.compile(
        program, backend=look, fullgraph=True, dynamic=False, isolate_recompiles=True
    )
    inputs = (call.query, call.key, call.value, *flex_flash.block_lists(call, kind))
    out, lse = compiled(*inputs)
    settings = {name: value for name, value in case.items() if name != "queries"}
    expected = sia.scale_invariant_attention(
        *inputs[:3], **settings, return_lse=True, backend="reference"
    )
    torch.testing.assert_close(out, expected[0], atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(lse, expected[1], atol=5e-6, rtol=1e-5)

    (graph,) = graphs
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.higher_order.flex_attention)
    # query, key, value, score_mod, block_mask, scale, options, captured by score_mod and by mask_mod
    assert node.args[5] == call.scale
    assert node.args[7:] == ((), ())


def test_flash_is_what_is_requested():
    assert flex_flash.OPTIONS == {"BACKEND": "FLASH"}
    call = case_call()
    kind = flex_flash.kind_of(call, return_lse=False)
    options = []

    def look(graph, inputs):
        options.extend(
            n.args[6]
            for n in graph.graph.nodes
            if n.target is torch.ops.higher_order.flex_attention
        )
        return lambda *_: (torch.zeros(1, 4, 200, 16),)

    program = flex_flash.program(kind, flex_flash.OPTIONS)
    run = torch.compile(program, backend=look, dynamic=False, isolate_recompiles=True)
    run(call.query, call.key, call.value, *flex_flash.block_lists(call, kind))
    assert [option["BACKEND"] for option in options] == ["FLASH"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key_positions": torch.arange(8)}, "consecutive positions"),
        ({"key_documents": torch.zeros(8).long()}, "documents"),
        ({"key_mask": torch.ones(1, 8, dtype=torch.bool)}, "key mask"),
        ({"tau": torch.tensor(10.0)}, "tau as a number"),
        ({"affine": DistanceAffine.identity(8)}, "tau as a number"),
        ({"dtype": torch.float32}, "float32"),
        ({"key_bias": torch.zeros(1, 1, 8)}, "no key_bias; use 'flex'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_calls_are_refused_with_the_reason(changes, reason):
    changes = dict(changes)
    query = torch.randn(1, 2, 8, 16, dtype=changes.pop("dtype", torch.bfloat16))
    affine, tau = changes.pop("affine", None), changes.pop("tau", 10.0)
    key_bias = changes.pop("key_bias", None)
    seen = Visibility(**changes)
    call = checked_call(
        query, query, query, affine=affine, tau=tau, visibility=seen, key_bias=key_bias
    )
    assert reason in flex_flash.unsupported_reason(call, False)


def test_it_is_for_gpus_with_flash_attention_4_and_runs_only_by_name():
    query = torch.randn(1, 2, 8, 16, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="NVIDIA GPUs only"):
        sia.scale_invariant_attention(query, query, query, backend="flex_flash")
    assert backends.BACKENDS["flex_flash"].auto_on == ()


@pytest.mark.parametrize(
    ("major", "installed", "reason"),
    [(8, True, "9.0 or higher"), (9, False, "flash-attn-4"), (9, True, None), (10, True, None)],
)
def test_what_a_gpu_needs(monkeypatch, major, installed, reason):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(flex_flash, "find_spec", lambda name: name if installed else None)
    found = flex_flash.unavailable_reason(torch.device("cuda"))
    assert found is None if reason is None else reason in found


def test_the_number_tau_is_known_without_reading_a_tensor():
    query = torch.empty(1, 2, 8, 16, device="meta")

    def number(tau, affine=None):
        call = checked_call(query, query, query, affine=affine, tau=tau, visibility=Visibility())
        return call.tau_number

    assert number(3) == 3.0
    assert number(torch.tensor(3.0, device="meta")) is None
    assert number(3, DistanceAffine.identity(8, device="meta")) is None
