"""Properties of the op that hold for any inputs, on every backend that supports them."""

import math

import pytest
import torch
import torch.nn.functional as F
from backend_names import WHOLE, takes_float64

import scale_invariant_attention as sia

BACKENDS = WHOLE
ODD = [1, 2, 63, 64, 65, 111, 300]


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def inputs(queries=65, keys=65, heads=4, key_heads=2, size=16, batch=2, dtype=torch.float32):
    return (
        normal(batch, heads, queries, size, dtype=dtype),
        normal(batch, key_heads, keys, size, seed=1, dtype=dtype),
        normal(batch, key_heads, keys, size, seed=2, dtype=dtype),
    )


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.mark.parametrize("length", ODD)
@pytest.mark.parametrize("is_causal", [True, False])
def test_gain_one_and_bias_zero_is_sdpa(backend, length, is_causal):
    query, key, value = (t.requires_grad_() for t in inputs(length, length))
    affine = sia.DistanceAffine.identity(length)
    found = sia.distance_affine_attention(
        query, key, value, affine, is_causal=is_causal, backend=backend
    )
    expected = F.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, enable_gqa=True
    )
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    found_grads = torch.autograd.grad(found.square().sum(), (query, key, value))
    expected_grads = torch.autograd.grad(expected.square().sum(), (query, key, value))
    for found_grad, expected_grad in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(found_grad, expected_grad, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("length", ODD)
def test_the_last_rows_of_the_full_result_are_the_cached_result(backend, length):
    query, key, value = inputs(length, length)
    full = sia.scale_invariant_attention(query, key, value, backend=backend)
    for new in {1, min(3, length), length}:
        cached = sia.scale_invariant_attention(
            query[:, :, length - new :], key, value, backend=backend
        )
        torch.testing.assert_close(cached, full[:, :, length - new :], atol=2e-6, rtol=1e-5)


def test_grouped_heads_are_repeated_heads(backend):
    query, key, value = inputs(heads=6, key_heads=2)
    grouped = sia.scale_invariant_attention(query, key, value, backend=backend)
    repeated = sia.scale_invariant_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), backend=backend
    )
    torch.testing.assert_close(grouped, repeated, atol=2e-6, rtol=1e-5)


def test_later_tokens_never_change_earlier_outputs(backend):
    query, key, value = inputs(111, 111)
    before = sia.scale_invariant_attention(query, key, value, backend=backend)
    for changed in (key, value):
        changed[:, :, 70:] = 1e4
    after = sia.scale_invariant_attention(query, key, value, backend=backend)
    assert torch.equal(before[:, :, :70], after[:, :, :70])
    assert not torch.equal(before[:, :, 70:], after[:, :, 70:])


def test_nan_in_the_future_never_reaches_the_past_nor_its_gradients(backend):
    query, key, value = inputs(300, 300)
    keep = 257

    def run(key, value):
        leaves = [t.detach().clone().requires_grad_() for t in (query, key, value)]
        out = sia.scale_invariant_attention(*leaves, backend=backend)
        grads = torch.autograd.grad(out[:, :, :keep].sum(), leaves)
        return [out[:, :, :keep], *(grad[:, :, :keep] for grad in grads)]

    clean = run(key, value)
    for poisoned in (key, value):
        poisoned[:, :, keep:] = math.nan
    for before, after in zip(clean, run(key, value), strict=True):
        assert torch.equal(before, after)


def test_a_query_that_is_nan_spoils_only_what_it_sees(backend):
    documents = torch.arange(40) // 20
    query, key, value = inputs(40, 40)

    def run(query):
        leaves = [t.detach().clone().requires_grad_() for t in (query, key, value)]
        out = sia.scale_invariant_attention(*leaves, key_documents=documents, backend=backend)
        return [out, *torch.autograd.grad(out.sum(), leaves)]

    clean = run(query)
    query[:, :, 5] = math.nan
    spoilt = run(query)
    for before, after in zip(clean, spoilt, strict=True):
        assert torch.equal(before[:, :, 20:], after[:, :, 20:])
    # The output, and the gradient of the keys that the query sees.
    for after in (spoilt[0], spoilt[2]):
        assert after[:, :, :6].isnan().any()


def test_a_query_that_sees_no_key_gives_zeros_minus_infinity_and_zero_gradients(backend):
    query, key, value = (t.requires_grad_() for t in inputs(10, 10))
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0] = False
    out, lse = sia.scale_invariant_attention(
        query, key, value, key_mask=mask, return_lse=True, backend=backend
    )
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.equal(lse[0], torch.full_like(lse[0], -math.inf))
    assert torch.isfinite(lse[1]).all()
    grads = torch.autograd.grad((out.sum() + lse[1].sum()), (query, key, value))
    for grad in grads:
        assert torch.equal(grad[0], torch.zeros_like(grad[0]))
        assert torch.isfinite(grad[1]).all()
        assert grad[1].any()


def test_translation_changes_nothing(backend):
    query, key, value = inputs(40, 60)
    query_positions, key_positions = torch.arange(20, 60), torch.arange(60)
    expected = sia.scale_invariant_attention(query, key, value, backend=backend)
    for shift in (0, 7, 10**9):
        found = sia.scale_invariant_attention(
            query,
            key,
            value,
            query_positions=query_positions + shift,
            key_positions=key_positions + shift,
            backend=backend,
        )
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_order_of_keys_does_not_matter_when_positions_say_where_they_are(backend):
    query, key, value = inputs(40, 60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    expected = sia.scale_invariant_attention(query, key, value, backend=backend)
    found = sia.scale_invariant_attention(
        query,
        key[:, :, order],
        value[:, :, order],
        query_positions=torch.arange(20, 60),
        key_positions=order,
        backend=backend,
    )
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("positions", ["global", "by document"])
def test_packed_documents_are_separate_sequences(backend, positions):
    lengths = (31, 64, 5)
    query, key, value = inputs(sum(lengths), sum(lengths))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    settings = {"query_documents": documents, "key_documents": documents}
    if positions == "by document":
        inside = torch.cat([torch.arange(n) for n in lengths])
        settings |= {"query_positions": inside, "key_positions": inside}
    packed = sia.scale_invariant_attention(query, key, value, backend=backend, **settings)
    parts = zip(*(t.split(lengths, 2) for t in (query, key, value)), strict=True)
    separate = [sia.scale_invariant_attention(*part, backend=backend) for part in parts]
    torch.testing.assert_close(packed, torch.cat(separate, 2), atol=2e-6, rtol=1e-5)


def test_left_padding_is_the_sequence_alone(backend):
    query, key, value = inputs(50, 50)
    padding = torch.tensor([13, 0])
    positions = torch.arange(50) - padding.unsqueeze(1)
    out = sia.scale_invariant_attention(
        query,
        key,
        value,
        query_positions=positions,
        key_positions=positions,
        key_mask=positions >= 0,
        backend=backend,
    )
    for row, skip in enumerate(padding.tolist()):
        alone = sia.scale_invariant_attention(
            *(t[row : row + 1, :, skip:] for t in (query, key, value)), backend=backend
        )
        torch.testing.assert_close(out[row : row + 1, :, skip:], alone, atol=2e-6, rtol=1e-5)
        assert torch.equal(out[row, :, :skip], torch.zeros_like(out[row, :, :skip]))


def test_a_window_is_the_rest_left_out(backend):
    query, key, value = inputs(100, 100)
    out = sia.scale_invariant_attention(query, key, value, window=10, backend=backend)
    last = sia.scale_invariant_attention(
        query[:, :, -1:], key[:, :, -10:], value[:, :, -10:], backend=backend
    )
    torch.testing.assert_close(out[:, :, -1:], last, atol=2e-6, rtol=1e-5)
    wide = sia.scale_invariant_attention(query, key, value, window=100, backend=backend)
    full = sia.scale_invariant_attention(query, key, value, backend=backend)
    torch.testing.assert_close(wide, full, atol=2e-6, rtol=1e-5)


def test_sinks_stay_visible_under_a_window_and_are_not_transformed(backend):
    query, key, value = inputs(100, 100)
    out = sia.scale_invariant_attention(query, key, value, window=10, sinks=2, backend=backend)
    gain = torch.sqrt(1 + 2 * torch.log1p(torch.arange(10.0) / 10)).flip(0)
    bias = -2 * torch.log1p(torch.arange(10.0) / 10).flip(0)
    seen = torch.cat([torch.arange(2), torch.arange(90, 100)])
    gain, bias = torch.cat([torch.ones(2), gain]), torch.cat([torch.zeros(2), bias])
    keys, values = (t[:, :, seen].repeat_interleave(2, 1) for t in (key, value))
    logits = gain * (query[:, :, -1:] @ keys.mT) / 4 + bias
    torch.testing.assert_close(
        out[:, :, -1:], torch.softmax(logits, -1) @ values, atol=2e-6, rtol=1e-5
    )


def test_alibi_without_causality_is_symmetric_in_distance(backend):
    query, key, value = inputs(33, 33)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    out = sia.distance_affine_attention(
        query, key, value, sia.DistanceAffine.alibi(33, slopes), is_causal=False, backend=backend
    )
    distance = (torch.arange(33)[:, None] - torch.arange(33)).abs()
    mask = -slopes[:, None, None] * distance
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_results(backend, dtype):
    if dtype == torch.float64 and not takes_float64(backend):
        pytest.skip(f"{backend} computes in float32")
    query, key, value = (t.requires_grad_() for t in inputs(17, 17, dtype=dtype))
    out, lse = sia.scale_invariant_attention(query, key, value, return_lse=True, backend=backend)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    grads = torch.autograd.grad(out.sum() + lse.sum(), (query, key, value))
    assert all(grad.dtype == dtype for grad in grads)


def test_log_sum_exp_merges_halves_of_the_keys(backend):
    """Two halves and their log-sum-exps give the whole, as in ring attention."""
    query, key, value = inputs(1, 200)
    positions = {"query_positions": torch.tensor([199])}
    halves = [
        sia.scale_invariant_attention(
            query,
            key[:, :, part],
            value[:, :, part],
            key_positions=torch.arange(200)[part],
            return_lse=True,
            backend=backend,
            **positions,
        )
        for part in (slice(0, 77), slice(77, 200))
    ]
    lse = torch.stack([half[1] for half in halves])
    weights = torch.softmax(lse, 0).unsqueeze(-1)
    merged = sum(w * half[0] for w, half in zip(weights, halves, strict=True))
    whole, whole_lse = sia.scale_invariant_attention(
        query, key, value, return_lse=True, backend=backend
    )
    torch.testing.assert_close(merged, whole, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(torch.logsumexp(lse, 0), whole_lse, atol=2e-6, rtol=1e-5)


def test_250_repeats_agree_bitwise(backend):
    leaves = [t.requires_grad_() for t in inputs(129, 129)]
    tau = torch.tensor([1.0, 3.0, 10.0, 30.0], requires_grad=True)

    def run():
        out, lse = sia.scale_invariant_attention(*leaves, tau=tau, return_lse=True, backend=backend)
        return [out, lse, *torch.autograd.grad(out.sum() + lse.sum(), (*leaves, tau))]

    first = run()
    for _ in range(249):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 5, 16), (2, 4, 0, 16)], ids=["no batch", "no queries"])
def test_empty_calls_give_empty_results(backend, shape):
    query = torch.randn(shape, requires_grad=True)
    key = torch.randn(shape[0], 2, 7, 16, requires_grad=True)
    mask = torch.ones(shape[0], 7, dtype=torch.bool)
    out, lse = sia.scale_invariant_attention(
        query, key, key, key_mask=mask, return_lse=True, backend=backend
    )
    assert out.shape == shape
    assert lse.shape == shape[:3]
    grads = torch.autograd.grad(out.sum() + lse.sum(), (query, key))
    assert [grad.shape for grad in grads] == [query.shape, key.shape]


def test_no_keys_at_all_is_seeing_nothing(backend):
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)
    out, lse = sia.scale_invariant_attention(query, key, key, return_lse=True, backend=backend)
    assert torch.equal(out, torch.zeros(1, 2, 3, 4))
    assert torch.equal(lse, torch.full((1, 2, 3), -math.inf))


def test_distances_of_a_billion_are_exact(backend):
    """One far key and one near: their weights follow from the formula."""
    dtype = torch.float64 if takes_float64(backend) else torch.float32
    query, key = torch.ones(1, 1, 1, 4, dtype=dtype), torch.ones(1, 1, 2, 4, dtype=dtype)
    value = torch.tensor([[1.0], [0.0]], dtype=dtype)[None, None]
    far = 10**9
    out = sia.scale_invariant_attention(
        query,
        key,
        value,
        query_positions=torch.tensor([far]),
        key_positions=torch.tensor([0, far]),
        backend=backend,
    )
    u = math.log1p(far / 10)
    odds = math.exp(math.sqrt(1 + 2 * u) * 2 - 2 * u - 2)
    rel = 1e-12 if takes_float64(backend) else 1e-5
    assert float(out) == pytest.approx(odds / (1 + odds), rel=rel)
