"""The bias of a key: a number added to its logits, on every backend that takes it."""

import math

import pytest
import torch
import torch.nn.functional as F
from backend_names import CPU, WHOLE, takes_float64
from extreme_calls import LOGITS, SPOILED

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.attention.contract import checked_call

BATCH, HEADS, KEY_HEADS, LENGTH, SIZE = 2, 4, 2, 70, 12
SHAPES = [(rows, heads, LENGTH) for rows in (1, BATCH) for heads in (1, KEY_HEADS, HEADS)]


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def inputs(dtype=torch.float32, queries=LENGTH):
    return [
        normal(BATCH, heads, length, size, seed=seed, dtype=dtype).requires_grad_()
        for seed, (heads, length, size) in enumerate(
            ((HEADS, queries, SIZE), (KEY_HEADS, LENGTH, SIZE), (KEY_HEADS, LENGTH, 20))
        )
    ]


@pytest.fixture(params=WHOLE)
def backend(request):
    return request.param


def test_the_gain_does_not_multiply_it_and_sinks_have_it(backend):
    """With keys of zeros, the logits are the biases alone."""
    query, key, value = inputs()
    key = torch.zeros_like(key)
    key_bias = normal(1, HEADS, LENGTH)
    affine = sia.DistanceAffine(torch.full((LENGTH,), 7.0), torch.zeros(LENGTH))
    out = sia.distance_affine_attention(
        query, key, value, affine, sinks=5, key_bias=key_bias, is_causal=False, backend=backend
    )
    expected = key_bias.softmax(-1).unsqueeze(2) @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(out, expected.expand_as(out), atol=2e-6, rtol=1e-5)


def test_a_forgetting_transformer(backend):
    """Its logit is ``q . k + c_i - c_j``, with c the cumulative logarithms of the forget gates."""
    query, key, value = inputs()
    gates = normal(BATCH, HEADS, LENGTH, seed=5).requires_grad_()
    leaves = (query, key, value, gates)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wide_key, wide_value = (t.repeat_interleave(2, 1) for t in exact[1:3])
    decay = F.logsigmoid(exact[3]).cumsum(-1)
    scores = exact[0] @ wide_key.mT / math.sqrt(SIZE)
    logits = scores + decay.unsqueeze(-1) - decay.unsqueeze(-2)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = logits.masked_fill(hidden, -torch.inf).softmax(-1) @ wide_value
    found = sia.distance_affine_attention(
        query,
        key,
        value,
        sia.DistanceAffine.identity(LENGTH),
        key_bias=-F.logsigmoid(gates).cumsum(-1),
        backend=backend,
    )
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    grads = torch.autograd.grad(found.square().sum(), leaves)
    expected_grads = torch.autograd.grad(expected.square().sum(), exact)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.double(), expected_grad, atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_heads_may_share_it_and_get_the_sum_of_its_gradients(backend, shape):
    tensors = inputs()
    shared = normal(*shape, seed=4).requires_grad_()
    whole = shared.detach().repeat_interleave(HEADS // shape[1], 1)
    whole = whole.repeat_interleave(BATCH // shape[0], 0).requires_grad_()

    def results(key_bias):
        out = sia.scale_invariant_attention(*tensors, key_bias=key_bias, backend=backend)
        return out, torch.autograd.grad(out.square().sum(), (*tensors, key_bias))

    (out, grads), (expected, by_head) = results(shared), results(whole)
    assert torch.equal(out, expected)
    for grad, expected_grad in zip(grads[:3], by_head, strict=False):
        assert torch.equal(grad, expected_grad)
    summed = by_head[3].unflatten(1, (shape[1], -1)).sum(2).sum_to_size(shape)
    torch.testing.assert_close(grads[3], summed)


def test_the_same_number_for_all_keys_changes_the_log_sum_exp_alone(backend):
    tensors = inputs()
    shift = torch.full((1, HEADS, 1), 3.0).expand(1, HEADS, LENGTH)
    settings = {"window": 30, "return_lse": True, "backend": backend}
    out, lse = sia.scale_invariant_attention(*tensors, key_bias=shift, **settings)
    expected, expected_lse = sia.scale_invariant_attention(*tensors, **settings)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse + 3)


def test_minus_infinity_hides_a_key_like_a_mask(backend):
    query, key, value = inputs()
    mask = normal(BATCH, LENGTH, seed=6) < 0
    mask[0, 0] = False  # of the first row, whose first query then sees nothing
    key_bias = torch.zeros(BATCH, 1, LENGTH).masked_fill(~mask.unsqueeze(1), -torch.inf)
    key_bias.requires_grad_()
    spoilt_key = key.detach().masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_()
    out, lse = sia.scale_invariant_attention(
        query, spoilt_key, value, key_bias=key_bias, return_lse=True, backend=backend
    )
    expected, expected_lse = sia.scale_invariant_attention(
        query, key, value, key_mask=mask, return_lse=True, backend=backend
    )
    torch.testing.assert_close((out, lse), (expected, expected_lse), atol=2e-6, rtol=1e-5)
    assert not out[0, :, 0].any()
    grads = torch.autograd.grad(out.square().sum(), (query, spoilt_key, value, key_bias))
    expected_grads = torch.autograd.grad(expected.square().sum(), (query, key, value))
    torch.testing.assert_close(grads[:3], expected_grads, atol=5e-5, rtol=1e-5)
    assert not grads[3].masked_select(~mask.unsqueeze(1)).any()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_rows_that_see_nan_or_infinity_are_nan_and_no_other(backend, wrong):
    tensors = inputs()
    key_bias = normal(BATCH, HEADS, LENGTH, seed=4)
    spoilt = key_bias.clone()
    spoilt[1, 2, 40] = wrong
    bad = torch.zeros(BATCH, HEADS, LENGTH, dtype=torch.bool)
    bad[1, 2, 40:] = True
    key_bias, spoilt = key_bias.requires_grad_(), spoilt.requires_grad_()
    clean, dirty = (
        sia.scale_invariant_attention(*tensors, key_bias=it, return_lse=True, backend=backend)
        for it in (key_bias, spoilt)
    )
    for before, after in zip(clean, dirty, strict=True):
        assert after[bad].isnan().all()
        assert torch.equal(before[~bad], after[~bad])
    # Rows without a gradient propagate none, even if they are NaN.
    grad = normal(*clean[0].shape, seed=7).masked_fill(bad.unsqueeze(-1), 0)
    before = torch.autograd.grad(clean[0], (*tensors, key_bias), grad)
    after = torch.autograd.grad(dirty[0], (*tensors, spoilt), grad)
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize(("logits", "outcome"), LOGITS.values(), ids=LOGITS)
def test_logits_at_the_limits_of_numbers(backend, logits, outcome):
    """The keys are zeros, so that the bias alone is the logit."""
    query, key, value = torch.ones(1, 1, 5, 4), torch.zeros(1, 1, 5, 4), normal(1, 1, 5, 4)
    logits = torch.tensor(logits)
    leaves = [it.requires_grad_() for it in (query, key, value, logits.view(1, 1, 5).clone())]
    out, lse = sia.scale_invariant_attention(
        *leaves[:3],
        tau=1e30,
        is_causal=False,
        key_bias=leaves[3],
        return_lse=True,
        backend=backend,
    )
    if outcome == SPOILED:
        assert out.isnan().all()
        assert lse.isnan().all()
        return
    weights = logits.double().softmax(0).nan_to_num(0.0)
    torch.testing.assert_close(out[0, 0, 0].double(), weights @ value[0, 0].double())
    torch.testing.assert_close(lse[0, 0, 0].double(), logits.double().logsumexp(0))
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_it_is_rounded_to_the_compute_dtype_at_most_and_its_gradient_to_its_own(backend, dtype):
    halves = [t.detach().bfloat16().requires_grad_() for t in inputs()]
    key_bias = (100 + normal(BATCH, HEADS, LENGTH)).to(dtype).requires_grad_()
    out = sia.scale_invariant_attention(*halves, key_bias=key_bias, backend=backend)
    wide = key_bias.detach().float().requires_grad_()
    expected = sia.scale_invariant_attention(*halves, key_bias=wide, backend=backend)
    assert torch.equal(out, expected)
    (grad,) = torch.autograd.grad(out.float().square().sum(), key_bias)
    (wide_grad,) = torch.autograd.grad(expected.float().square().sum(), wide)
    assert grad.dtype == dtype
    assert torch.equal(grad, wide_grad.to(dtype))


def test_autocast_leaves_it_alone(backend):
    tensors, key_bias = inputs(), 1000 + normal(BATCH, HEADS, LENGTH)
    with torch.autocast("cpu", torch.bfloat16):
        out = sia.scale_invariant_attention(*tensors, key_bias=key_bias, backend=backend)
    halves = [t.bfloat16() for t in tensors]
    expected = sia.scale_invariant_attention(*halves, key_bias=key_bias, backend=backend)
    assert torch.equal(out, expected)


def test_the_oracle_differentiates_it():
    query, key, value = (t.detach().double()[:1, :, :3, :2].requires_grad_() for t in inputs())
    key_bias = normal(1, KEY_HEADS, 3, dtype=torch.float64).requires_grad_()

    def attend(query, key, value, key_bias):
        return sia.scale_invariant_attention(
            query, key, value, key_bias=key_bias, return_lse=True, backend="reference"
        )

    assert torch.autograd.gradcheck(attend, (query, key, value, key_bias))
    assert torch.autograd.gradgradcheck(attend, (query, key, value, key_bias))


@pytest.mark.parametrize("queries", [0, 5])
@pytest.mark.parametrize("keys", [0, LENGTH])
def test_calls_without_queries_or_keys(backend, queries, keys):
    query, key, value = inputs()
    key_bias = normal(1, HEADS, keys).requires_grad_()
    out = sia.scale_invariant_attention(
        query[:, :, :queries],
        key[:, :, :keys],
        value[:, :, :keys],
        key_bias=key_bias,
        query_positions=torch.arange(queries),
        backend=backend,
    )
    (grad,) = torch.autograd.grad(out.sum(), key_bias)
    assert grad.shape == key_bias.shape


@pytest.mark.parametrize(
    ("key_bias", "error", "words"),
    [
        ([0.0], TypeError, ["key_bias", "list"]),
        (torch.zeros(1, 1, LENGTH).long(), TypeError, ["key_bias", "int64", "float32"]),
        (torch.ones(1, 1, LENGTH).bool(), TypeError, ["key_bias", "bool", "key_mask"]),
        (torch.zeros(1, 1, LENGTH).to(torch.float8_e4m3fn), TypeError, ["key_bias", "float8"]),
        (torch.zeros(LENGTH), ValueError, ["[2, 2 or 4, 70]", "(70,)"]),
        (torch.zeros(1, 3, LENGTH), ValueError, ["[2, 2 or 4, 70]", "(1, 3, 70)"]),
        (torch.zeros(3, 1, LENGTH), ValueError, ["[2, 2 or 4, 70]", "(3, 1, 70)"]),
        (torch.zeros(1, 1, 1), ValueError, ["[2, 2 or 4, 70]", "(1, 1, 1)"]),
        (torch.zeros(1, 1, LENGTH, device="meta"), ValueError, ["key_bias", "meta", "cpu"]),
        (torch.zeros(1, 1, LENGTH).to_sparse(), TypeError, ["key_bias", "dense"]),
    ],
    ids=[
        "list",
        "integers",
        "bool",
        "float8",
        "one dimension",
        "heads",
        "rows",
        "keys",
        "device",
        "sparse",
    ],
)
def test_what_is_wrong_is_refused_in_words(key_bias, error, words):
    with pytest.raises(error) as caught:
        sia.scale_invariant_attention(*inputs(), key_bias=key_bias)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 1, LENGTH), (BATCH, KEY_HEADS, LENGTH)])
def test_compile_without_graph_breaks(backend, shape):
    torch.compiler.reset()
    leaves = (*inputs(), normal(*shape, seed=4).requires_grad_())

    def step(query, key, value, key_bias):
        out = sia.scale_invariant_attention(
            query, key, value, key_bias=2 * key_bias, backend=backend
        )
        return out.square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(step(*leaves), leaves)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*leaves), leaves), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("shape", [(1, 1, LENGTH), (BATCH, HEADS, LENGTH)])
@pytest.mark.parametrize("backend", ["tiled", CPU])
def test_opcheck(backend, shape):
    dtype = torch.float64 if takes_float64(backend) else torch.float32
    call = checked_call(
        *inputs(dtype),
        affine=None,
        tau=torch.tensor(2.0, dtype=torch.float64, requires_grad=True),
        visibility=Visibility(window=40),
        key_bias=normal(*shape, seed=4, dtype=dtype).requires_grad_(),
    )
    arguments = tuple(
        t.detach().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in call.arguments()
    )
    operator = getattr(torch.ops.scale_invariant_attention, backend).default
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1])
@pytest.mark.parametrize("queries", [1, 3, LENGTH])
def test_nan_of_any_bits_gives_nan(backend, bits, queries):
    """Casts from float16 make NaN whose bits are all set, which an exponential may mistake for a number.

    With more keys than one, the sum of such numbers would overflow, and hide the mistake.
    """
    query, key, value = normal(1, 2, queries, SIZE), normal(1, 2, 1, SIZE), normal(1, 2, 1, SIZE)
    nan, one = torch.tensor([bits], dtype=torch.int32).view(torch.float32), torch.ones(1)
    # Positions, for one distance alone.
    settings = {"return_lse": True, "backend": backend, "key_positions": torch.tensor([0])}
    settings["query_positions"] = torch.zeros(queries, dtype=torch.long)
    biased = sia.scale_invariant_attention(
        query, key, value, key_bias=nan.expand(1, 1, 1), **settings
    )
    tabled = (
        sia.distance_affine_attention(query, key, value, sia.DistanceAffine(*table), **settings)
        for table in ((one, nan), (nan, one))
    )
    for out, lse in (biased, *tabled):
        assert out.isnan().all()
        assert lse.isnan().all()
