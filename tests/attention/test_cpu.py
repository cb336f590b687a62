"""The compiled kernels where random contracts do not reach: long, wide, far apart, many threads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from backend_names import needs_kernels
from contract_checks import hidden_nan_leaks
from error_budgets import Judge, public_call, run
from functorch.compile import make_boxed_func
from random_contracts import Contract
from torch._dynamo.backends.common import aot_autograd

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility, cpu
from scale_invariant_attention.attention.contract import checked_call
from scale_invariant_attention.lab.benchmark.peak_memory import peak_memory
from scale_invariant_attention.lab.benchmark.problem import Problem

pytestmark = needs_kernels

MIB = 2**20


def contract(queries, keys, heads=2, key_heads=None, size=32, value_size=None, **settings):
    """A call with tensors of these shapes; tau, gain, bias and key_bias get gradients."""
    generator = torch.Generator().manual_seed(queries * keys + heads * size)
    dtype = settings.pop("dtype", torch.float32)
    batch = settings.pop("batch", 1)
    learned = {n: settings.pop(n) for n in ("tau", "gain", "bias", "key_bias") if n in settings}
    key_heads, value_size = key_heads or heads, value_size or size

    def normal(*shape):
        return torch.randn(batch, *shape, generator=generator).to(dtype)

    return Contract(
        seed=0,
        query=normal(heads, queries, size),
        key=normal(key_heads, keys, size),
        value=normal(key_heads, keys, value_size),
        learned=learned,
        settings={"is_causal": True, **settings},
        grad_out=normal(heads, queries, value_size),
        grad_lse=normal(heads, queries),
    )


def check(*contracts):
    """Every result within the budget that plain eager code sets, against the float64 reference."""
    found = []
    for each in contracts:
        violations = Judge(each).violations(run(each, public_call("cpu")))
        found += [f"{each}\n    {violation}" for violation in violations]
    assert not found, "\n".join(found)


@contextmanager
def torch_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def taus(heads):
    return torch.logspace(0, 2, heads)


def tables(heads, length):
    steps = torch.arange(heads * length) / length
    return {"gain": 1 + 0.3 * steps.sin().view(heads, length), "bias": -steps[:length].sqrt()}


def key_biases(heads, keys):
    """A decay by head that also hides every ninth key and a whole block of them."""
    bias = torch.arange(keys) * torch.linspace(0.001, 0.1, heads).unsqueeze(1)
    bias[:, 4::9] = bias[:, 700:1500] = -torch.inf
    return {"key_bias": bias.unsqueeze(0)}


# Five heads do not divide evenly among threads, nor does one: then several work items share a head.
SHARED_WORK = {
    "one head": contract(300, 300, heads=1, tau=taus(1)[0]),
    "five heads": contract(200, 200, heads=5, size=16, **tables(5, 200)),
    "grouped heads": contract(200, 230, heads=6, key_heads=2, size=24, tau=taus(6)),
    "window and sinks": contract(300, 300, heads=1, window=70, sinks=3, **tables(1, 300)),
    "documents": contract(250, 250, heads=3, tau=taus(3), key_documents=torch.arange(250) // 90),
    "both directions": contract(250, 250, heads=1, is_causal=False, **tables(1, 250)),
    "one token, a cache": contract(1, 5000, heads=4, key_heads=2, size=64, tau=taus(4)),
    "three tokens, a cache": contract(3, 4999, heads=1, size=64, tau=taus(1)[0]),
    "a block of queries, a cache": contract(33, 4999, heads=4, key_heads=2, size=64, tau=taus(4)),
    "a key bias, grouped heads": contract(
        200, 230, heads=6, key_heads=2, size=24, tau=taus(6), **key_biases(6, 230)
    ),
    "a key bias, one head": contract(300, 300, heads=1, **tables(1, 300), **key_biases(1, 300)),
    "bfloat16": contract(300, 300, heads=5, size=60, tau=taus(5), dtype=torch.bfloat16),
    "bfloat16, grouped heads": contract(
        111, 263, heads=4, key_heads=2, size=100, value_size=63, dtype=torch.bfloat16
    ),
    "bfloat16, one token": contract(1, 4999, heads=8, key_heads=2, size=63, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("shared", SHARED_WORK.values(), ids=SHARED_WORK)
def test_any_number_of_threads_is_right_and_repeats_itself_to_the_bit(shared):
    judge = Judge(shared)
    for threads in (1, 2, 3):
        with torch_threads(threads):
            first = run(shared, public_call("cpu"))
            assert not judge.violations(first)
            for _ in range(20):
                again = run(shared, public_call("cpu")).tensors()
                for name, tensor in first.tensors().items():
                    assert torch.equal(again[name], tensor), (threads, name)


def test_calls_at_once_give_what_they_give_one_after_the_other():
    calls = [*SHARED_WORK.values()] * 3
    with torch_threads(2):
        alone = [run(call, public_call("cpu")).tensors() for call in calls]
        with ThreadPoolExecutor(4) as pool:
            together = pool.map(lambda call: run(call, public_call("cpu")).tensors(), calls)
            for one, other in zip(alone, together, strict=True):
                assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("length", [1000, 1337])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"is_causal": False},
        {"window": 333},
        {"window": 200, "sinks": 5, "is_causal": False},
        {"biased": True},
        {"biased": True, "window": 200, "sinks": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_blocks_none_of_them_whole(length, settings, dtype):
    if settings.get("biased"):
        settings = {**settings, **key_biases(1, length)}
        del settings["biased"]
    check(contract(length, length, heads=1, tau=taus(1), dtype=dtype, **settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 17, 32, 48, 60, 63, 64, 80, 96, 100, 111, 128, 160, 192, 256])
def test_head_sizes(size, dtype):
    other = 256 + 1 - size
    check(
        contract(391, 391, heads=1, size=size, dtype=dtype),
        contract(391, 391, heads=1, size=size, value_size=other, dtype=dtype),
    )


def test_identity_tables_at_length_equal_scaled_dot_product_attention():
    case = contract(1337, 1337, heads=2, size=80, value_size=48)
    inputs = [case.query, case.key, case.value]
    leaves = [t.requires_grad_() for t in inputs]
    affine = sia.DistanceAffine.identity(1337)
    out = sia.distance_affine_attention(*leaves, affine, backend="cpu")
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    torch.testing.assert_close(out, expected)
    grads = torch.autograd.grad(out, leaves, case.grad_out)
    expected_grads = torch.autograd.grad(expected, leaves, case.grad_out)
    torch.testing.assert_close(grads, expected_grads, atol=1e-4, rtol=1e-4)


CACHES = {
    "plain": lambda keys: {},
    "window": lambda keys: {"window": 100, "sinks": 2},
    "mask": lambda keys: {"key_mask": torch.arange(keys).expand(1, keys) % 7 != 3},
    "key bias": lambda keys: key_biases(4, keys),
    "bfloat16": lambda keys: {"dtype": torch.bfloat16},
    "bfloat16, key bias": lambda keys: {"dtype": torch.bfloat16, **key_biases(2, keys)},
    "float16": lambda keys: {"dtype": torch.float16, "tau": taus(4)},
}


@pytest.mark.parametrize("keys", [1, 63, 64, 65, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_a_few_queries_against_a_cache(keys, cache):
    """Up to eight are decoded, with the cache in parts of 2048; more are a block of queries."""
    shape = {"heads": 4, "key_heads": 2, "size": 20, "value_size": 9}
    check(*(contract(queries, keys, **shape, **cache(keys)) for queries in range(1, 10)))


CHUNKS = {
    "plain": lambda keys: {"tau": taus(4)},
    "window": lambda keys: {"window": 1500, "sinks": 3},
    "both directions": lambda keys: {"is_causal": False, **tables(4, keys)},
    "mask": lambda keys: {"key_mask": torch.arange(keys).expand(1, keys) % 7 != 3},
    "documents": lambda keys: {"key_documents": torch.arange(keys) // 1700},
    "gaps": lambda keys: {"key_positions": torch.arange(keys) * 2 + torch.arange(keys) % 2},
    "key bias": lambda keys: key_biases(4, keys),
    "key bias, window": lambda keys: {"window": 1500, "sinks": 3, **key_biases(1, keys)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", CHUNKS.values(), ids=CHUNKS)
def test_a_block_of_queries_against_a_cache(chunk, dtype):
    """Up to 192 queries are one block, whose keys are packed in parts of 2048."""
    shape = {"heads": 4, "key_heads": 2, "size": 20, "value_size": 9, "dtype": dtype}
    cases = [
        contract(queries, keys, **shape, **chunk(keys))
        for queries, keys in ((17, 2049), (33, 4100), (192, 2305), (193, 2305))
    ]
    check(*cases)
    assert [hidden_nan_leaks(case, "cpu") for case in cases] == [[]] * len(cases)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [32, 63])
def test_a_hidden_nan_in_a_long_cache_changes_nothing(dtype, size):
    case = contract(2, 5000, heads=4, key_heads=2, size=size, dtype=dtype)
    key, value = case.key.clone(), case.value.clone()
    mask = torch.ones(1, 5000, dtype=torch.bool)
    mask[:, [0, 2050, 4999]] = False
    key[:, :, 0], key[:, :, 2050], value[:, :, 4999] = torch.nan, torch.inf, torch.nan
    clean = sia.scale_invariant_attention(
        case.query, case.key, case.value, key_mask=mask, backend="cpu"
    )
    dirty = sia.scale_invariant_attention(case.query, key, value, key_mask=mask, backend="cpu")
    assert torch.equal(clean, dirty)


# Lines end at 65,536 distances. Some pairs are near, some just beyond, some very far.
FAR = {
    "scattered": (torch.arange(9) * 1_250_000, torch.arange(6) * 1_999_999 + 3),
    "just beyond the lines": (
        torch.cat([torch.tensor([-(10**7)]), torch.arange(8) * 700]),
        72_000 + 3 * torch.arange(6),
    ),
    "a long row far away": (
        torch.cat([torch.arange(150), 10**7 + torch.arange(150)]),
        10**7 + torch.arange(150),
    ),
}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("places", FAR.values(), ids=FAR)
def test_far_positions_give_tau_its_gradient(places, is_causal):
    keys, queries = places
    far = contract(
        len(queries),
        len(keys),
        heads=3,
        tau=taus(3),
        key_positions=keys,
        query_positions=queries,
        is_causal=is_causal,
    )
    check(far)


def test_gradients_do_not_depend_on_earlier_calls():
    """Lines are kept between calls, and a later call may find longer ones than it needs."""
    tau = torch.tensor([7.3, 11.9])
    places = {
        "key_positions": torch.cat([torch.tensor([-(10**7)]), torch.arange(8) * 700]),
        "query_positions": 79_000 + torch.arange(6),
    }
    far = contract(6, 9, heads=2, tau=tau, **places)
    before = run(far, public_call("cpu")).tensors()
    run(contract(1, 80_000, heads=2, size=1, tau=tau), public_call("cpu"))
    after = run(far, public_call("cpu")).tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_auto_compiles_to_the_kernels_forward_and_backward():
    torch.compiler.reset()
    operators = set()

    def record(graph, _):
        operators.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    attend = torch.compile(
        sia.scale_invariant_attention,
        fullgraph=True,
        backend=aot_autograd(fw_compiler=record, bw_compiler=record),
    )
    inputs = [torch.randn(1, 2, 70, 16, requires_grad=True) for _ in range(3)]
    assert sia.backend_for(*inputs) == "cpu"
    found = torch.autograd.grad(attend(*inputs).sum(), inputs)
    expected = torch.autograd.grad(
        sia.scale_invariant_attention(*inputs, backend="cpu").sum(), inputs
    )
    assert {
        "scale_invariant_attention.cpu.default",
        "scale_invariant_attention.cpu_backward.default",
    } <= operators
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_beyond_inputs_outputs_and_gradients_is_small(monkeypatch):
    """Linear in length: half of what is allowed at 16k. One score matrix alone would be 1.5 GiB."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    peak = peak_memory("cpu", Problem.named("6x128", "8192", "forward+backward"))
    assert peak <= 128 * MIB


@pytest.mark.parametrize(("length", "reaches"), [(1024, True), (64, False)])
def test_many_pairs_far_apart_read_their_affine_from_lines(length, reaches):
    """Blocks of a long sequence on several ranks; a few pairs far apart are computed one by one."""
    tensors = torch.randn(3, 1, 1, length, 8).unbind()
    positions = torch.arange(length)
    seen = Visibility(query_positions=positions + 120_000, key_positions=positions)
    call = checked_call(*tensors, affine=None, tau=10.0, visibility=seen)
    packed, _alive = cpu._packed(call)
    assert (cpu.LIBRARY.sia_affine_length(packed) > 120_000) == reaches
