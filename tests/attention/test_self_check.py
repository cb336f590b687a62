"""The self-check: right backends pass, wrong ones are named with what differs, nothing else changes."""

from dataclasses import replace

import pytest
import torch
from backend_names import needs_kernels

from scale_invariant_attention.attention import numerics, reference, self_check, tiled
from scale_invariant_attention.attention._self_check_contracts import (
    CONTRACTS,
    FLOAT16,
    HALF,
    SINGLE,
)
from scale_invariant_attention.attention.backends import BACKENDS, Backend
from scale_invariant_attention.attention.block_map import BlockMap
from scale_invariant_attention.attention.self_check import check

BY_NAME = {contract.name: contract for contract in CONTRACTS}
CAUSAL = [BY_NAME["causal"]]


@pytest.mark.parametrize("name", ["tiled", pytest.param("cpu", marks=needs_kernels)])
def test_right_backends_pass_with_room_to_spare(name):
    both = [replace(contract, precisions=(SINGLE, HALF)) for contract in CONTRACTS]
    outcome = check(BACKENDS[name], "cpu", both)
    assert outcome.passed, outcome.findings
    assert outcome.declined == ()
    assert outcome.closest.error < 0.7 * outcome.closest.budget


def broken(change):
    """The tiled backend, its call or its results changed on the way."""
    return Backend("broken", change)


def late_window(call, _):
    window = call.visibility.window
    visibility = replace(call.visibility, window=window and window + 1)
    return tiled.attention(replace(call, visibility=visibility))


def without_documents(call, _):
    visibility = replace(call.visibility, query_documents=None, key_documents=None)
    return tiled.attention(replace(call, visibility=visibility))


def wrong_head_of_the_group(call, _):
    value = call.value.roll(1, 1) if call.group > 1 else call.value
    return tiled.attention(replace(call, value=value))


def wrong_lse(call, _):
    out, lse = tiled.attention(call)
    return out, lse + 1e-3


def no_gradient_of_tau(call, _):
    tau = None if call.tau is None else call.tau.detach() + 0 * call.tau
    return tiled.attention(replace(call, tau=tau))


def shifted_table(call, _):
    bias = None if call.bias is None else call.bias.roll(1, 1)
    return tiled.attention(replace(call, bias=bias))


def without_key_bias(call, _):
    shift = 0 if call.key_bias is None else 0 * call.key_bias.nan_to_num().sum()
    out, lse = tiled.attention(replace(call, key_bias=None))
    return out + shift, lse


def no_gradient_of_key_bias(call, _):
    key_bias = call.key_bias
    if key_bias is not None:
        key_bias = key_bias.detach() + 0 * key_bias.where(key_bias > -torch.inf, 0)
    return tiled.attention(replace(call, key_bias=key_bias))


def wide_heads_only(call, _):
    out, lse = tiled.attention(call)
    return (out * 1.05 if call.query.shape[3] == 128 else out), lse


def wrong_in_half_precision(call, _):
    out, lse = tiled.attention(call)
    return (out if call.query.dtype == torch.float32 else out * 1.1), lse


def wrong_decode(call, _):
    key = call.key.clone()
    if call.query.shape[2] == 1:
        key[:, :, 1024:] = 0
    return tiled.attention(replace(call, key=key))


def not_a_number(call, _):
    out, lse = tiled.attention(call)
    return out.masked_fill(torch.arange(out.shape[2]).view(-1, 1) == 130, torch.nan), lse


def zero_where_nothing_is_seen(call, _):
    out, lse = tiled.attention(call)
    return out, lse.masked_fill(lse == -torch.inf, 0)


BROKEN = {
    late_window: "window",
    without_documents: "positions, documents, mask, window and sinks",
    wrong_head_of_the_group: "grouped heads, fewer queries than keys, not causal",
    wrong_lse: "causal",
    no_gradient_of_tau: "learned tau",
    shifted_table: "learned tables",
    without_key_bias: "key bias",
    no_gradient_of_key_bias: "key bias",
    wide_heads_only: "causal, head size 128",
    wrong_in_half_precision: "causal",
    wrong_decode: "decode, one query",
    not_a_number: "causal",
    zero_where_nothing_is_seen: "positions, documents, mask, window and sinks",
}


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: change.__name__)
def test_what_is_broken_is_found_and_named(change):
    outcome = check(broken(change), "cpu", [BY_NAME[BROKEN[change]]])
    assert not outcome.passed
    found = outcome.differences[0]
    assert found.contract == BROKEN[change]
    assert not found.error <= found.budget
    assert found.contract in outcome.findings
    assert found.tensor in outcome.findings


def test_the_tensor_and_the_dtype_that_differ_are_named():
    (found, *_) = check(broken(wrong_lse), "cpu", CAUSAL).differences
    assert (found.tensor, found.dtype) == ("log-sum-exp", "float32")
    assert found.error == pytest.approx(1e-3, rel=0.01)
    found = check(broken(no_gradient_of_tau), "cpu", [BY_NAME["learned tau"]]).differences
    assert {it.tensor for it in found} == {"gradient of tau"}
    found = check(broken(wrong_in_half_precision), "cpu", CAUSAL).differences
    assert {it.dtype for it in found} == {"bfloat16"}


def test_an_exception_is_a_finding():
    def raising(call, _):
        raise RuntimeError("out of shared memory")

    outcome = check(broken(raising), "cpu")
    assert not outcome.passed
    assert outcome.findings == "causal: RuntimeError: out of shared memory"


def test_declined_contracts_are_listed_and_declining_all_is_no_pass():
    def no_learning(call, return_lse):
        return "it cannot learn" if call.affine_requires_grad else None

    modest = Backend(
        "modest", lambda call, _: tiled.attention(call), unsupported_reason=no_learning
    )
    contracts = [BY_NAME["window"], BY_NAME["learned tau"]]
    outcome = check(modest, "cpu", contracts)
    assert outcome.passed
    assert outcome.declined == ("learned tau",)
    assert not check(modest, "cpu", contracts[1:]).passed


def test_the_state_of_torch_does_not_matter_and_is_left_alone():
    """Autocast, no_grad, inference mode, default dtype and device; the random numbers stay put."""
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    exact = Backend("exact", lambda call, _: reference.attention(call))
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.device("meta"),
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.inference_mode(),
        ):
            assert check(exact, "cpu", CAUSAL).passed
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_contracts_cover_what_users_call():
    assert {c.head_dim for c in CONTRACTS} >= {64, 128}
    assert {c.learned for c in CONTRACTS} == {None, "tau", "tables"}
    assert {it for c in CONTRACTS for it in c.precisions} == {SINGLE, HALF, FLOAT16}
    assert any(c.sequence_first for c in CONTRACTS)
    # Both kinds of masked numbers: in forward and backward, and in decoding.
    assert {c.gradients for c in CONTRACTS if c.hidden_nan} == {True, False}
    assert any(c.queries == 1 for c in CONTRACTS)
    assert any(c.heads > c.key_heads for c in CONTRACTS)
    # Several tiles of 64, and not a whole number of them.
    assert all(c.keys > 128 and c.keys % 16 for c in CONTRACTS if c.queries > 1)
    assert len(CONTRACTS) == len(BY_NAME)


def test_tf32_keeps_ten_bits():
    numbers = torch.randn(1000)
    rounded = numerics.round_to_tf32(numbers)
    assert (rounded.view(torch.int32) & 0x1FFF == 0).all()
    assert ((rounded - numbers).abs() <= 2**-11 * numbers.abs()).all()
    assert not torch.equal(rounded, numbers)


def products_in_tf32(call, _):
    tensors = {name: getattr(call, name) for name in ("query", "key", "value")}
    rounded = {name: numerics.round_to_tf32(tensor) for name, tensor in tensors.items()}
    return tiled.attention(replace(call, **rounded))


@pytest.mark.parametrize("allowed", [False, True])
def test_products_in_tf32_pass_only_if_torch_allows_them(monkeypatch, allowed):
    contracts = [replace(CAUSAL[0], precisions=(SINGLE,)), BY_NAME["learned tables"]]
    if allowed:
        # As on an NVIDIA GPU, in float32.
        monkeypatch.setattr(
            self_check, "multiplies_in_tf32", lambda tensor: tensor.dtype == torch.float32
        )
    outcome = check(broken(products_in_tf32), "cpu", contracts)
    assert outcome.passed is allowed, outcome.findings
    # What is exact passes either way.
    assert check(BACKENDS["tiled"], "cpu", contracts).passed


@pytest.mark.parametrize("name", ["the same, long documents", "documents, mask, window and sinks"])
def test_some_tiles_on_the_path_of_lists_need_no_mask(name):
    """With any tile that a kernel has, whole tiles, partly visible ones and hidden ones are listed."""
    length = BY_NAME[name].keys
    visibility = BY_NAME[name].visibility().with_positions(length, length, torch.device("cpu"))
    for queries in (32, 64, 128):
        for keys in (32, 64, 128):
            some, full = BlockMap(visibility, queries, keys).every()
            assert full.any()
            assert (some & ~full).any()
            assert not some.all()


def test_few_kernels_are_compiled():
    """Each takes seconds at the first check; contracts share them."""
    pytest.importorskip("triton")
    from self_check_kernels import kernels

    found = kernels("sm_80")
    assert {name for name, _ in found} >= {"forward", "key_gradients", "query_gradients", "split"}
    assert len(found) <= 70


def test_every_path_of_the_kernels_is_checked():
    pytest.importorskip("triton")
    from self_check_kernels import kernels

    found = [launch for launch, _ in kernels("sm_90").values()]

    def values(kernel, *names):
        arguments = [it.arguments for it in found if it.name == kernel]
        return {tuple(it[name] for name in names) for it in arguments}

    for kernel in ("forward", "key_gradients", "query_gradients"):
        pairs = {(False, False), (True, False), (True, True)}
        assert values(kernel, "LISTS", "POSITIONS") == pairs
        assert values(kernel, "AFFINE") >= {("line",), ("tau",), ("table",)}
        assert values(kernel, "CAUSAL", "WINDOW") == {(a, b) for a in (0, 1) for b in (0, 1)}
        assert values(kernel, "UNIT") == {(1,), (8,)}
        assert values(kernel, "BLOCK_D") == {(64,), (128,), (256,)}
        assert values(kernel, "KEY_BIAS") == {(False,), (True,)}
    assert values("split", "KEY_BIAS") == {(False,), (True,)}
    assert values("split", "ROWS") == {(16,), (32,), (64,), (128,)}
    assert values("split", "POSITIONS", "KEY_MASK") == {(False, False), (True, True)}


def nan_of_hidden_keys(call, _):
    mask = call.visibility.key_mask
    if mask is None:
        return tiled.attention(call)
    # As a kernel that only gives hidden keys the weight zero.
    value = call.value.where(mask[:, None, :, None], call.value * 0)
    out, lse = tiled.attention(replace(call, value=call.value.nan_to_num()))
    return out + value.sum(2, keepdim=True) * 0, lse


def test_nan_of_hidden_keys_that_leaks_is_found():
    outcome = check(
        broken(nan_of_hidden_keys), "cpu", [BY_NAME["documents, mask, window and sinks"]]
    )
    assert not outcome.passed
    assert "output" in {it.tensor for it in outcome.differences}
