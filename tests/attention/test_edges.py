"""Corners: what is refused only when a compiled call runs, odd emptiness, and the limits of floats."""

import inspect
import math

import numpy as np
import pytest
import torch
from backend_names import CPU, WHOLE
from extreme_calls import far_positions, overflowing_logits

import scale_invariant_attention as sia
from scale_invariant_attention.arguments import shown

BACKENDS = WHOLE


@pytest.fixture
def inputs():
    return torch.randn(3, 2, 4, 10, 8, generator=torch.Generator().manual_seed(0)).unbind()


def test_a_compiled_call_refuses_a_bad_tau_and_short_tables_when_it_runs(inputs):
    torch.compiler.reset()
    query, key, value = inputs

    @torch.compile(fullgraph=True, backend="aot_eager")
    def with_tau(tau):
        return sia.scale_invariant_attention(query, key, value, tau=tau)

    with_tau(torch.tensor(3.0))
    with pytest.raises(ValueError, match="tau must be positive"):
        with_tau(torch.tensor(-3.0))

    affine = sia.DistanceAffine.identity(10)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def with_positions(positions):
        return sia.distance_affine_attention(
            query, key, value, affine, query_positions=positions, key_positions=torch.arange(10)
        )

    with_positions(torch.arange(10))
    with pytest.raises(ValueError, match="needs 110"):
        with_positions(torch.arange(100, 110))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_query_gives_nan(backend):
    query, ones = torch.full((1, 1, 3, 1), math.inf), torch.ones(1, 1, 3, 1)
    out, lse = sia.scale_invariant_attention(query, -ones, ones, return_lse=True, backend=backend)
    assert out.isnan().all()
    assert lse.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_of_minus_infinity_keeps_nan_out(inputs, backend):
    query, key, value = inputs
    bias = torch.zeros(10)
    bias[3] = -math.inf
    key = key.clone()
    key[:, :, 0] = math.nan
    affine = sia.DistanceAffine(torch.ones(10), bias)
    out = sia.distance_affine_attention(query, key, value, affine, backend=backend)
    assert out.isnan().all((0, 1, 3)).tolist() == [i != 3 for i in range(10)]
    assert out.isnan().any((0, 1, 3)).tolist() == [i != 3 for i in range(10)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_queries_and_no_keys_with_rows_of_their_own(inputs, backend):
    query, key, value = inputs
    out = sia.scale_invariant_attention(
        query[:, :, :0], key, value, query_positions=torch.zeros(2, 0).long(), backend=backend
    )
    assert out.shape == (2, 4, 0, 8)
    out = sia.scale_invariant_attention(
        query,
        key[:, :, :0],
        value[:, :, :0],
        key_mask=torch.ones(2, 0, dtype=torch.bool),
        query_documents=torch.zeros(10).long(),
        key_documents=torch.zeros(2, 0).long(),
        backend=backend,
    )
    assert torch.equal(out, torch.zeros_like(query))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions", [torch.arange(10), torch.arange(10) * 2])
@pytest.mark.parametrize("tau", [1e-19, 1e300])
def test_extreme_taus_are_finite(inputs, backend, positions, tau):
    out = sia.scale_invariant_attention(
        *inputs, tau=tau, query_positions=positions, key_positions=positions, backend=backend
    )
    assert out.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_and_sinks_of_any_size(inputs, backend):
    full = sia.scale_invariant_attention(*inputs, backend=backend)
    wide = sia.scale_invariant_attention(*inputs, window=2**70, backend=backend)
    torch.testing.assert_close(wide, full)
    sia.scale_invariant_attention(*inputs, sinks=2**70, backend=backend)


def test_mixed_dtypes_are_refused_under_autocast_where_float64_stays(inputs):
    query, key, value = inputs
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(TypeError, match=r"same dtype.*float64"),
    ):
        sia.scale_invariant_attention(query, key.double(), value)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_meta_tensors_on_every_backend_that_runs_everywhere(backend):
    query = torch.empty(2, 4, 10, 8, device="meta")
    assert sia.scale_invariant_attention(query, query, query, backend=backend).shape == query.shape


def test_function_transforms_on_the_reference(inputs):
    query, key, value = inputs

    def total(query):
        return sia.scale_invariant_attention(query, key, value, backend="reference").sum()

    leaf = query.clone().requires_grad_()
    torch.testing.assert_close(
        torch.func.grad(total)(query), torch.autograd.grad(total(leaf), leaf)[0]
    )
    assert torch.vmap(total)(torch.stack([query, query])).shape == (2,)


def test_second_derivatives_exist_on_the_reference_and_are_refused_elsewhere(inputs):
    query, key, value = (t[:1, :1, :4, :2].double().requires_grad_() for t in inputs)

    def attend(backend):
        return lambda q: sia.scale_invariant_attention(q, key, value, backend=backend)

    assert torch.autograd.gradgradcheck(attend("reference"), query)
    out = attend("tiled")(query)
    (grad,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"second derivatives; use backend=\"reference\""):
        grad.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_derivatives_are_refused_rather_than_dropped(inputs, backend):
    query, key, value = inputs

    def attend(query):
        return sia.scale_invariant_attention(query, key, value, backend=backend)

    with pytest.raises(NotImplementedError, match=r"forward.mode"):
        torch.func.jvp(attend, (query,), (query,))


def test_return_lse_is_a_flag(inputs):
    with pytest.raises(TypeError, match="return_lse"):
        sia.scale_invariant_attention(*inputs, return_lse="no")


@pytest.mark.parametrize("same", [True, False])
def test_equal_rows_are_computed_together(inputs, same):
    """Rows that differ only in name: the results are those of rows on their own."""
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[:, 2] = False
    mask[1, 3] = same
    positions = torch.arange(10).repeat(2, 1)
    settings = {"key_mask": mask, "query_positions": positions, "key_positions": positions}
    found = sia.scale_invariant_attention(*inputs, **settings, backend="tiled")
    expected = sia.scale_invariant_attention(*inputs, **settings, backend="reference")
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_defaults_of_torch_do_not_matter(backend, dtype):
    query = torch.randn(1, 2, 9, 4, requires_grad=True)

    def attend():
        out, lse = sia.scale_invariant_attention(
            query, query, query, return_lse=True, backend=backend
        )
        return out, lse, *torch.autograd.grad(out.sum(), query)

    expected = attend()
    torch.set_default_dtype(dtype)
    try:
        found = attend()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        elsewhere = attend()
    for a, b, c in zip(expected, found, elsewhere, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("queries", [1, 5, 20])
def test_logits_that_are_not_numbers_give_nan(backend, queries):
    """From finite inputs: products that overflow, or tables that went wrong."""
    query = torch.full((1, 1, queries, 2), 1e20)
    key = torch.tensor([1e20, -1e20]).expand(1, 1, queries, 2)
    value = torch.ones(1, 1, queries, 2)
    out = sia.scale_invariant_attention(query, key, value, scale=1.0, backend=backend)
    assert out.isnan().all()
    affine = sia.DistanceAffine(torch.full((queries,), torch.nan), torch.zeros(queries))
    query, key = torch.randn(2, 1, 1, queries, 2).unbind()
    assert sia.distance_affine_attention(query, key, value, affine, backend=backend).isnan().all()


@pytest.mark.parametrize("backend", ["tiled", CPU])
def test_a_row_without_gradient_passes_nothing_back_though_it_overflows(backend):
    query, key, value = (torch.randn(1, 1, 8, 4) for _ in range(3))
    query[:, :, 5] = 1e30
    key[:, :, 3] = 1e30
    inputs = [t.requires_grad_() for t in (query, key, value)]
    affine = sia.DistanceAffine(torch.ones(8, requires_grad=True), torch.zeros(8))
    out = sia.distance_affine_attention(*inputs, affine, backend=backend)
    grads = torch.autograd.grad(out[:, :, :3].sum(), (*inputs, affine.gain))
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_overflowed_is_not_lost(backend):
    query, key, value = (torch.randn(1, 1, 8, 4) for _ in range(3))
    value.requires_grad_()
    out = sia.scale_invariant_attention(query, key, value, backend=backend)
    grad_out = torch.ones_like(out)
    grad_out[:, :, -1] = torch.inf
    (grad,) = torch.autograd.grad(out, value, grad_out)
    assert not torch.isfinite(grad).all(-1).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_that_overflow_are_treated_alike(backend):
    overflowing_logits(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e5, 4e6, 1e30])
def test_the_weights_of_large_logits_add_up_to_one(backend, size):
    query = torch.full((1, 2, 12, 16), 0.5)
    key_bias = torch.full((1, 2, 12), size)
    out = sia.scale_invariant_attention(
        query, query, torch.ones(1, 2, 12, 8), key_bias=key_bias, backend=backend
    )
    assert torch.allclose(out, torch.ones_like(out))


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_positions_and_taus(backend):
    far_positions(backend)


def test_extremes_on_flex():
    with torch.no_grad():
        overflowing_logits("flex", has_lse=False)
        far_positions("flex", learns_tau=False)


@pytest.mark.parametrize(
    "tau", [10**400, -(10**400), 1e-320, 1e-50, 9e-20, math.inf, math.nan, 0, -1.0], ids=shown
)
def test_a_tau_out_of_range_is_refused(inputs, tau):
    with pytest.raises(ValueError, match="tau must be positive and finite"):
        sia.scale_invariant_attention(*inputs, tau=tau)
    if not isinstance(tau, int) or tau == 0:
        with pytest.raises(ValueError, match="tau must be positive and finite"):
            sia.scale_invariant_attention(*inputs, tau=torch.tensor(tau, dtype=torch.float64))


def test_a_learned_tau_below_zero_names_its_logarithm(inputs):
    tau = torch.nn.Parameter(torch.tensor([1.0, -0.1, 2.0, 3.0]))
    with pytest.raises(ValueError, match=r"learn its logarithm, and pass log_tau\.exp\(\)"):
        sia.scale_invariant_attention(*inputs, tau=tau)


@pytest.mark.parametrize("scale", [10**400, 1e300, 1e39, -1e39, math.inf, math.nan])
def test_a_scale_beyond_float32_is_refused(inputs, scale):
    with pytest.raises(ValueError, match="scale must be finite in float32, got"):
        sia.scale_invariant_attention(*inputs, scale=scale)


@pytest.mark.parametrize("name", ["query_positions", "key_positions"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [10, 100])
@pytest.mark.parametrize("wrong", [2**61, 2**62, 2**63 - 1, -(2**61) - 1, -(2**63)])
def test_positions_out_of_range_are_refused(name, rows, length, wrong):
    query = torch.randn(2, 1, length, 8)
    positions = torch.arange(length).repeat(rows, 1)
    positions[-1, 3] = wrong
    settings = {name: positions if rows == 2 else positions[0]}
    with pytest.raises(ValueError, match=rf"{name} must be from -2\*\*61 to 2\*\*61 - 1, got"):
        sia.scale_invariant_attention(query, query, query, **settings)


@pytest.mark.parametrize("length", [10, 100])
@pytest.mark.parametrize("start", [2**61 - 5, 2**63 - 5, 2**63, 2**64 - 100])
def test_large_uint64_positions_are_refused(length, start):
    query = torch.randn(1, 1, length, 8)
    positions = torch.from_numpy(np.arange(length, dtype=np.uint64) + np.uint64(start))
    with pytest.raises(ValueError, match="key_positions must be from"):
        sia.scale_invariant_attention(query, query, query, key_positions=positions)


@pytest.mark.parametrize("length", [10, 100])
def test_uint64_positions(length):
    query = torch.randn(1, 1, length, 8)
    positions = torch.arange(length) + 7
    results = [
        sia.scale_invariant_attention(query, query, query, key_positions=it)
        for it in (positions, positions.to(torch.uint64))
    ]
    assert torch.equal(*results)


def test_a_compiled_call_refuses_positions_out_of_range_when_it_runs(inputs):
    torch.compiler.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(positions):
        return sia.scale_invariant_attention(*inputs, key_positions=positions)

    attend(torch.arange(10))
    with pytest.raises(ValueError, match="positions must be from"):
        attend(torch.arange(10) + 2**61)


@pytest.mark.parametrize("number", [np.float64, np.float32, np.float16, np.int64, np.uint8])
def test_numbers_of_numpy(inputs, number):
    for name, value in (("tau", 5), ("scale", 2)):
        given, plain = (
            sia.scale_invariant_attention(*inputs, **{name: it}) for it in (number(value), value)
        )
        assert torch.equal(given, plain)
    settings = {"window": number(3), "sinks": number(1)}
    if issubclass(number, np.integer):
        given = sia.scale_invariant_attention(*inputs, **settings)
        assert torch.equal(given, sia.scale_invariant_attention(*inputs, window=3, sinks=1))
    else:
        with pytest.raises(TypeError, match="window must be an integer, got"):
            sia.scale_invariant_attention(*inputs, **settings)


@pytest.mark.parametrize("name", ["tau", "scale", "window", "sinks"])
@pytest.mark.parametrize("value", [np.bool_(True), True, "3", [3]])
def test_what_is_no_number_is_refused(inputs, name, value):
    with pytest.raises(TypeError, match=f"{name} must be"):
        sia.scale_invariant_attention(*inputs, **{name: value})


LISTED = torch.nested.nested_tensor([torch.zeros(4, 10, 8)] * 2, layout=torch.jagged)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto", "flex"])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors_get_a_sentence(inputs, backend, place):
    name = ("query", "key", "value")[place]
    stacked = torch.nested.nested_tensor([torch.zeros(4, 10, 8)] * 2, layout=torch.strided)
    sparse = (inputs[0].to_sparse(), r"to_dense\(\)")
    for strange, fix in (sparse, (LISTED, "key_mask"), (stacked, "key_mask")):
        tensors = list(inputs)
        tensors[place] = strange
        with pytest.raises(TypeError, match=rf"{name} must be a dense tensor, got .*{fix}"):
            sia.scale_invariant_attention(*tensors, backend=backend)


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("tau", torch.ones(4)),
        ("key_positions", torch.arange(10)),
        ("query_positions", torch.arange(10)),
        ("key_documents", torch.arange(10)),
        ("key_mask", torch.ones(2, 10, dtype=torch.bool)),
    ],
)
def test_other_sparse_tensors_get_a_sentence(inputs, name, dense):
    with pytest.raises(TypeError, match=f"{name} must be a dense tensor, got the layout"):
        sia.scale_invariant_attention(*inputs, **{name: dense.to_sparse()})
    with pytest.raises(TypeError, match="bias must be a dense tensor"):
        sia.DistanceAffine(torch.ones(10), torch.ones(10).to_sparse())


def call_of(function, *misplaced, **settings):
    query = torch.randn(1, 1, 4, 8)
    affine = () if function is sia.scale_invariant_attention else (sia.DistanceAffine.identity(4),)
    return function(query, query, query, *affine, *misplaced, **settings)


FUNCTIONS = [sia.scale_invariant_attention, sia.distance_affine_attention, sia.backend_for]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda it: it.__name__)
def test_the_arguments_of_sdpa_name_ours(function):
    for name, value, ours in (
        ("attn_mask", None, "key_mask, key_documents or window"),
        ("dropout_p", 0.0, "no dropout"),
        ("enable_gqa", True, "key may always have fewer heads"),
    ):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\).*'{name}': .*{ours}"):
            call_of(function, **{name: value})
    for misplaced in ((None,), (torch.ones(4, 4).bool(), 0.0, True)):
        with pytest.raises(TypeError, match=r"by position, got .*attn_mask, use key_mask"):
            call_of(function, *misplaced)


def test_a_mask_in_place_of_the_tables_names_ours():
    query, mask = torch.randn(1, 1, 4, 8), torch.ones(4, 4).bool()
    with pytest.raises(TypeError, match="got Tensor; to hide keys, use key_mask"):
        sia.distance_affine_attention(query, query, query, mask)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda it: it.__name__)
def test_signatures_show_no_more_than_can_be_given(function):
    kinds = [it.kind for it in inspect.signature(function).parameters.values()]
    assert not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} & set(kinds)


@pytest.mark.parametrize("backend", ["auto", "tiled", CPU])
def test_derivatives_of_torch_func_name_the_reference(inputs, backend):
    query, key, value = inputs

    def total(query):
        return sia.scale_invariant_attention(query, key, value, backend=backend).sum()

    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian):
        with pytest.raises(NotImplementedError, match=r'backend="reference"|forward-mode'):
            transform(total)(query)
    with pytest.raises(NotImplementedError, match=r'torch\.func; use backend="reference"'):
        torch.func.vjp(total, query)
    leaf = query.clone().requires_grad_()
    (grad,) = torch.autograd.grad(total(leaf), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match=r'second derivatives; use backend="reference"'):
        grad.square().sum().backward()
