"""Cases for the Triton kernels in Triton's interpreter: a program for child processes.

    TRITON_INTERPRET=1 python tests/support/triton_cases.py corners|sizes|torch|decode

It runs the functions of one list in turn, and prints how many passed.
"""

import math
import sys
import warnings
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from error_budgets import Judge, public_call, run
from extreme_calls import far_positions, overflowing_logits
from quick_interpreter import hurry
from random_contracts import Contract
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility, _triton_launch, _triton_plan, tiled
from scale_invariant_attention.attention._triton_plan import Device, Plan
from scale_invariant_attention.attention.contract import checked_call

LENGTH = 40


def attend(*tensors, **settings):
    """The op on the Triton backend."""
    return sia.scale_invariant_attention(*tensors, backend="triton", **settings)


def leaves(dtype=torch.float32, requires_grad=True):
    """Query, key and value with grouped heads and a larger value."""
    torch.manual_seed(0)
    shapes = ((1, 4, LENGTH, 12), (1, 2, LENGTH, 12), (1, 2, LENGTH, 20))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def within_budget(contract):
    """Every result within the budget that plain eager code sets."""
    violations = Judge(contract).violations(run(contract, public_call("triton")))
    assert not violations, violations


def contract(queries, keys, heads=2, key_heads=1, size=16, **settings):
    """A contract with tensors of these shapes; tau, gain and bias among the settings get gradients."""
    generator = torch.Generator().manual_seed(queries * keys)
    learned = {n: settings.pop(n) for n in ("tau", "gain", "bias") if n in settings}
    batch = settings.pop("batch", 1)

    dtype = settings.pop("dtype", torch.float32)

    def normal(*shape):
        return torch.randn(batch, *shape, generator=generator).to(dtype)

    return Contract(
        seed=0,
        query=normal(heads, queries, size),
        key=normal(key_heads, keys, size),
        value=normal(key_heads, keys, size),
        learned=learned,
        settings={"is_causal": True, **settings},
        grad_out=normal(heads, queries, size),
        grad_lse=normal(heads, queries).float(),
    )


def empty_calls():
    query, key, value = (t.detach() for t in leaves())
    assert attend(query[:0], key[:0], value[:0]).shape == (0, 4, LENGTH, 20)
    out, lse = attend(query, key[:, :, :0], value[:, :, :0], return_lse=True)
    assert not out.any()
    assert (lse == -math.inf).all()
    assert attend(query[:, :, :0], key, value).shape == (1, 4, 0, 20)
    inputs = leaves()
    out = attend(inputs[0], inputs[1][:, :, :0], inputs[2][:, :, :0])
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), inputs))


def rows_that_see_nothing():
    query, key, value = leaves()
    mask = torch.zeros(1, LENGTH, dtype=torch.bool)
    mask[:, 30:] = True
    out, lse = attend(query, key, value, key_mask=mask, return_lse=True)
    assert not out[:, :, :30].any()
    assert (lse[:, :, :30] == -math.inf).all()
    grads = torch.autograd.grad(out.sum() + lse[:, :, 30:].sum(), (query, key, value))
    assert all(g.isfinite().all() for g in grads)
    assert not grads[0][:, :, :30].any()


def an_infinite_query_gives_nan():
    for queries in (3, 40):
        query = torch.full((1, 1, queries, 1), math.inf)
        ones = torch.ones(1, 1, queries, 1)
        out, lse = attend(query, -ones, ones, return_lse=True)
        assert out.isnan().all()
        assert lse.isnan().all()


def an_infinite_key_gives_nan_where_it_is_seen():
    for queries in (3, LENGTH):
        query, key, value = (t.detach() for t in leaves())
        query = query[:, :, -queries:].abs()
        key = key.clone()
        key[:, :, 35] = -math.inf
        out = attend(query, key, value)
        seeing = torch.arange(LENGTH - queries, LENGTH) >= 35
        assert torch.equal(out.isnan().any((0, 1, 3)), seeing)


def a_bias_of_minus_infinity_keeps_nan_out():
    for queries in (1, 10, 40):
        query, key, value = torch.randn(3, 1, 2, 40, 8).unbind()
        bias = torch.zeros(40)
        bias[3::4] = -math.inf
        key = key.clone()
        key[:, :, 0] = math.nan
        affine = sia.DistanceAffine(torch.ones(40), bias)
        out = sia.distance_affine_attention(
            query[:, :, -queries:], key, value, affine, backend="triton"
        )
        hidden = torch.arange(40 - queries, 40) % 4 == 3
        assert torch.equal(~out.isnan().any((0, 1, 3)), hidden)
        assert torch.equal(~out.isnan().all((0, 1, 3)), hidden)


def a_silent_row_passes_nothing_back_though_it_overflows():
    query, key, value = (torch.randn(1, 1, 40, 4) for _ in range(3))
    query[:, :, 35] = 1e30
    key[:, :, 3] = 1e30
    inputs = [t.requires_grad_() for t in (query, key, value)]
    affine = sia.DistanceAffine(torch.ones(40, requires_grad=True), torch.zeros(40))
    out = sia.distance_affine_attention(*inputs, affine, backend="triton")
    grads = torch.autograd.grad(out[:, :, :3].sum(), (*inputs, affine.gain))
    assert all(torch.isfinite(grad).all() for grad in grads)


def an_overflowed_gradient_is_not_lost():
    query, key, value = (torch.randn(1, 1, 40, 4) for _ in range(3))
    value.requires_grad_()
    out = attend(query, key, value)
    grad_out = torch.ones_like(out)
    grad_out[:, :, -1] = torch.inf
    (grad,) = torch.autograd.grad(out, value, grad_out)
    assert not torch.isfinite(grad).all(-1).any()


def nan_does_not_change_the_order_of_sums():
    # Blocks before, in and after the middle; the queries that do not see the last key stay as they are.
    both = {"is_causal": False, "window": 100}
    for settings, unseeing in (({}, 249), ({"window": 100}, 249), (both, 150)):
        long = contract(250, 250, tau=torch.tensor([3.0, 9.0]), **settings)
        value = long.value.clone()
        value[:, :, -1] = math.nan
        grad_out = long.grad_out.clone()
        grad_out[:, :, unseeing:] = 0
        clean, dirty = (
            run(
                long, public_call("triton"), inputs=long.inputs | change, grad_out=grad_out
            ).tensors()
            for change in ({}, {"value": value})
        )
        for name, tensor in clean.items():
            before, after = tensor, dirty[name]
            if name in ("out", "lse"):
                before, after = before[:, :, :unseeing], after[:, :, :unseeing]
            assert torch.equal(before, after), name


def logits_that_are_not_numbers_give_nan():
    for queries in (1, 40):
        query = torch.full((1, 1, queries, 2), 1e20)
        key = torch.tensor([1e20, -1e20]).expand(1, 1, queries, 2)
        value = torch.ones(1, 1, queries, 2)
        assert attend(query, key, value, scale=1.0).isnan().all()
        affine = sia.DistanceAffine(torch.full((queries,), torch.nan), torch.zeros(queries))
        query, key = torch.randn(2, 1, 1, queries, 2).unbind()
        out = sia.distance_affine_attention(query, key, value, affine, backend="triton")
        assert out.isnan().all()


def a_bias_that_is_not_a_number_gives_nan():
    for queries in (3, LENGTH):
        query, key, value = (t[:, :, -queries:] for t in leaves())
        tables = [torch.ones(LENGTH), -torch.arange(LENGTH) / 8.0]
        tables[1][1] = torch.nan
        affine = sia.DistanceAffine(*(t.requires_grad_() for t in tables))
        given = {}
        for backend in ("reference", "triton"):
            out = sia.distance_affine_attention(query, key, value, affine, backend=backend)
            grads = torch.autograd.grad(out.sum(), (query, key, value, *tables))
            given[backend] = [out.isnan(), *(grad.isnan() for grad in grads)]
        assert given["reference"][0][:, :, 1:].all()
        for ours, right in zip(given["triton"], given["reference"], strict=True):
            assert torch.equal(ours, right)


def the_lowest_bias_is_not_a_mask():
    """Finite, though it overflows in base 2; with it, whole blocks weigh nothing."""
    lowest = torch.finfo(torch.float32).min
    query, key, value = torch.randn(3, 1, 2, 160, 16).unbind()
    for queries in (3, 160):
        for hidden in (20, 0):
            bias = torch.zeros(160)
            bias[hidden:] = lowest
            affine = sia.DistanceAffine(torch.ones(160), bias)
            out, right = (
                sia.distance_affine_attention(
                    query[:, :, -queries:], key, value, affine, backend=backend
                )
                for backend in ("triton", "reference")
            )
            if hidden == 0 and queries == 3:
                # Parts of the cache of different sizes have the same log-sum-exp.
                assert out.isfinite().all()
                continue
            if hidden == 0:
                # All logits are alike.
                right = (value.cumsum(2) / torch.arange(1, 161).view(-1, 1))[:, :, -queries:]
            torch.testing.assert_close(out, right)


def logits_that_overflow_to_minus_infinity_weigh_nothing():
    query, value = torch.full((1, 1, 160, 16), 1e20), torch.randn(1, 1, 160, 16)
    key = torch.full((1, 1, 160, 16), 1e-21)
    key[:, :, :64] = -1e20
    out, right = (
        sia.scale_invariant_attention(query, key, value, backend=backend)
        for backend in ("triton", "reference")
    )
    torch.testing.assert_close(out[:, :, 64:], right[:, :, 64:])
    assert out[:, :, 64:].isfinite().all()


def logits_that_overflow_are_treated_alike():
    overflowing_logits("triton")


def extreme_positions_and_taus():
    far_positions("triton")


def extreme_settings():
    inputs = [t.detach() for t in leaves()]
    for tau in (1e-19, 1e300):
        for positions in (None, torch.arange(LENGTH) * 2):
            out = attend(*inputs, tau=tau, query_positions=positions, key_positions=positions)
            assert out.isfinite().all()
    full = attend(*inputs)
    torch.testing.assert_close(attend(*inputs, window=2**70), full)
    attend(*inputs, sinks=2**70)
    far = torch.arange(LENGTH) * 10**9
    expected = tiled.attention(
        checked_call(
            *inputs,
            affine=None,
            tau=3.0,
            visibility=Visibility(query_positions=far, key_positions=far),
        )
    )[0]
    found = attend(*inputs, tau=3.0, query_positions=far, key_positions=far)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def heads_of_every_size():
    tau = torch.tensor([3.0, 9.0])
    for size in (1, 24, 80, 128, 192, 256):
        within_budget(contract(33, 40, size=size, tau=tau))
    within_budget(contract(33, 40, size=256, dtype=torch.float16, tau=tau))


def too_large_calls_are_refused():
    for shape, reason in (
        ((1, 1, 8, 257), "head sizes up to 256, not 257"),
        ((70_000, 1, 1, 4), "up to 65535 heads over the whole batch, not 70000"),
    ):
        query = torch.zeros(shape)
        with pytest.raises(NotImplementedError, match=reason):
            attend(query, query, query)


def a_scale_of_zero_has_gradients():
    positions = torch.arange(40)
    given = {"query_positions": positions, "key_positions": positions}
    for settings in ({}, given):
        within_budget(contract(40, 40, scale=0.0, tau=torch.tensor(3.0), **settings))


def tables_longer_than_the_call_get_zeros():
    gain = torch.ones(100)
    within_budget(contract(40, 40, gain=gain, bias=torch.zeros(2, 100)))
    within_budget(contract(40, 30, gain=gain, bias=torch.zeros(100), is_causal=False))


def tables_of_any_dtype_get_gradients():
    query, key, value = (t.detach() for t in leaves())
    for shape in ((LENGTH,), (4, LENGTH)):
        for dtypes in ((torch.float64, torch.float64), (torch.float64, torch.float32)):
            gain, bias = (torch.ones(shape, dtype=dtype) for dtype in dtypes)
            tables = [gain.requires_grad_(), bias.requires_grad_()]
            affine = sia.DistanceAffine(*tables)
            ours, right = (
                torch.autograd.grad(
                    sia.distance_affine_attention(query, key, value, affine, backend=backend)
                    .square()
                    .sum(),
                    tables,
                )
                for backend in ("triton", "reference")
            )
            for grad, expected, table in zip(ours, right, tables, strict=True):
                torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)
                assert grad.dtype == table.dtype
                assert grad.stride() == table.stride()


def tables_get_gradients_whatever_the_positions():
    generator = torch.Generator().manual_seed(0)
    scattered = torch.randperm(90, generator=generator)
    restarting = {
        "key_positions": torch.arange(70) % 23,
        "key_documents": torch.arange(70) // 23,
    }
    crowded = {
        "query_positions": torch.stack([scattered[:70], torch.zeros(70, dtype=torch.long)]),
        "key_positions": torch.stack([scattered[:70] + 5, torch.arange(70) // 7]),
        "key_mask": torch.rand(2, 70, generator=generator) > 0.2,
        "window": 20,
        "sinks": 3,
        "is_causal": False,
    }
    unequal = {
        "query_positions": scattered[:40] + 10**12,
        "key_positions": scattered[10:80] + 10**12,
        "is_causal": False,
    }
    for shape, rows, length, settings in (
        ({"queries": 40, "keys": 70}, (), 90, unequal),
        ({"queries": 70, "keys": 70, "heads": 4, "key_heads": 2, "batch": 2}, (4,), 23, restarting),
        ({"queries": 70, "keys": 70, "batch": 2}, (2,), 95, crowded),
    ):
        gain = torch.rand(*rows, length, generator=generator) + 0.5
        bias = -torch.rand(length, generator=generator)
        checked = contract(**shape, gain=gain, bias=bias, **settings)
        results = run(checked, public_call("triton"))
        assert not Judge(checked).violations(results)
        again = run(checked, public_call("triton")).tensors()
        assert all(torch.equal(tensor, again[name]) for name, tensor in results.tensors().items())


def a_nan_row_spoils_only_the_distances_it_sees():
    query, key, value = torch.randn(3, 1, 1, 40, 4).unbind()
    query[:, :, 10] = torch.nan
    positions = torch.arange(40)
    affine = sia.DistanceAffine(torch.ones(40, requires_grad=True), torch.zeros(40))
    out = sia.distance_affine_attention(
        *(query, key, value, affine),
        query_positions=positions,
        key_positions=positions,
        backend="triton",
    )
    (grad,) = torch.autograd.grad(out.sum(), affine.gain)
    assert torch.equal(grad.isnan(), torch.arange(40) <= 10)


def nothing_is_added_atomically():
    modules = list(Path(_triton_launch.__file__).parent.glob("_triton_*.py"))
    assert len(modules) > 5
    assert not any("atomic_" in module.read_text() for module in modules)


def compile_without_graph_breaks():
    for settings in ({}, {"window": 9, "sinks": 2}, {"key_documents": torch.arange(LENGTH) // 20}):
        inputs = leaves()
        tau = torch.tensor([1.0, 3.0, 10.0, 30.0], requires_grad=True)

        def step(query, key, value, tau, settings=settings):
            out, lse = attend(query, key, value, tau=tau, return_lse=True, **settings)
            return out.square().sum() + lse.masked_fill(lse == -torch.inf, 0).sum()

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        expected = torch.autograd.grad(step(*inputs, tau), (*inputs, tau))
        found = torch.autograd.grad(compiled(*inputs, tau), (*inputs, tau))
        torch.testing.assert_close(found, expected)


def fake_tensors():
    real = attend(*leaves(torch.bfloat16), return_lse=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        shapes = [torch.empty(t.shape, dtype=t.dtype) for t in leaves(torch.bfloat16)]
        fake = attend(*shapes, tau=torch.ones(4), return_lse=True)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def opcheck():
    learned = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    tables = sia.DistanceAffine(
        torch.rand(4, LENGTH, requires_grad=True), torch.rand(LENGTH, requires_grad=True)
    )
    for affine, tau in ((None, learned), (tables, None)):
        call = checked_call(*leaves(), affine=affine, tau=tau, visibility=Visibility(window=30))
        arguments = tuple(
            t.detach().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
            for t in call.arguments()
        )
        torch.library.opcheck(torch.ops.scale_invariant_attention.triton.default, arguments)


def autocast():
    query, key, value = leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = attend(query, key, value, return_lse=True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    narrow = [t.detach().bfloat16() for t in (query, key, value)]
    assert torch.equal(out, attend(*narrow))
    grads = torch.autograd.grad(out.float().sum(), (query, key, value))
    assert all(grad.dtype == torch.float32 for grad in grads)


def checkpointing():
    inputs = leaves()
    expected = torch.autograd.grad(attend(*inputs).square().sum(), inputs)
    for use_reentrant in (True, False):
        for tensor in inputs:
            tensor.grad = None
        checkpoint(attend, *inputs, use_reentrant=use_reentrant).square().sum().backward()
        for tensor, grad in zip(inputs, expected, strict=True):
            assert torch.equal(tensor.grad, grad)


def layouts():
    query, key, value = (t.detach() for t in leaves())
    expected = attend(query, key, value)
    sequence_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value)]
    columns_first = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (query, key, value)]
    for inputs in (sequence_first, columns_first):
        inputs = [t.requires_grad_() for t in inputs]
        out = attend(*inputs)
        assert torch.equal(out, expected)
        for tensor, grad in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
            assert grad.stride() == torch.empty_like(tensor).stride()
    one = torch.randn(1, 1, LENGTH, 12).expand(2, 4, LENGTH, 12).requires_grad_()
    (grad,) = torch.autograd.grad(attend(one, one, one).sum(), one)
    assert torch.isfinite(grad).all()


def rows_too_far_apart_are_copied():
    near = torch.randn(1, 2, 4, 8)
    strides = (8, 8, _triton_plan.FARTHEST_ROW, 1)
    far = torch.empty_strided(near.shape, strides, device="meta")
    with mock.patch.object(torch.Tensor, "contiguous", lambda tensor: "copied"):
        assert _triton_plan.rows_in_order(near) is near
        assert _triton_plan.rows_in_order(far) == "copied"


def few_queries_against_a_long_cache():
    for queries, keys, processors, settings in (
        (1, 700, 8, {}),
        (3, 517, 64, {"window": 100}),
        (2, 300, 1, {"sinks": 3, "window": 50}),
        (30, 200, 8, {}),
        (64, 150, 8, {"window": 90}),
        (4, 260, 132, {"is_causal": False, "key_mask": torch.arange(260).expand(1, 260) > 7}),
    ):
        device = Device("interpreter", processors=processors)
        with mock.patch.object(_triton_plan, "_device", return_value=device):
            within_budget(
                contract(queries, keys, heads=4, key_heads=2, tau=torch.tensor(5.0), **settings)
            )


def decoding_equals_the_last_rows():
    query, key, value = (t.detach() for t in leaves())
    torch.testing.assert_close(
        attend(query, key, value)[:, :, -2:], attend(query[:, :, -2:], key, value)
    )


def splits_fill_the_processors():
    counts = {}

    class Recorder(Plan):
        def launch(self, kernel, grid, **arguments):
            counts.setdefault(kernel.__name__, []).append(grid)

    query, key = torch.zeros(1, 8, 1, 64), torch.zeros(1, 2, 65536, 64)
    call = checked_call(query, key, key, affine=None, tau=3.0, visibility=Visibility())
    device = Device("interpreter", processors=100)
    with (
        mock.patch.object(_triton_plan, "_device", return_value=device),
        mock.patch.object(_triton_launch, "Plan", Recorder),
    ):
        _triton_launch.forward(call)
    # One program per split and key head: the heads of a group share what it reads.
    splits, key_heads = counts["split_kernel"][0]
    assert key_heads == 2
    assert 190 <= splits * key_heads <= 210


CASES = {
    "corners": (
        empty_calls,
        rows_that_see_nothing,
        an_infinite_query_gives_nan,
        an_infinite_key_gives_nan_where_it_is_seen,
        a_bias_of_minus_infinity_keeps_nan_out,
        a_silent_row_passes_nothing_back_though_it_overflows,
        an_overflowed_gradient_is_not_lost,
        nan_does_not_change_the_order_of_sums,
        logits_that_are_not_numbers_give_nan,
        a_bias_that_is_not_a_number_gives_nan,
        the_lowest_bias_is_not_a_mask,
        logits_that_overflow_to_minus_infinity_weigh_nothing,
        logits_that_overflow_are_treated_alike,
        extreme_positions_and_taus,
        extreme_settings,
    ),
    "sizes": (
        heads_of_every_size,
        too_large_calls_are_refused,
        a_scale_of_zero_has_gradients,
        tables_longer_than_the_call_get_zeros,
        tables_of_any_dtype_get_gradients,
        tables_get_gradients_whatever_the_positions,
        a_nan_row_spoils_only_the_distances_it_sees,
        nothing_is_added_atomically,
    ),
    "torch": (
        compile_without_graph_breaks,
        fake_tensors,
        opcheck,
        autocast,
        checkpointing,
        layouts,
        rows_too_far_apart_are_copied,
    ),
    "decode": (
        few_queries_against_a_long_cache,
        decoding_equals_the_last_rows,
        splits_fill_the_processors,
    ),
}


def main() -> None:
    """Run the cases of one list."""
    warnings.simplefilter("ignore", RuntimeWarning)
    torch.set_num_threads(1)
    hurry()
    chosen = CASES[sys.argv[1]]
    for case in chosen:
        case()
    print(len(chosen), "passed")


if __name__ == "__main__":
    main()
