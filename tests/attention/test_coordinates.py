"""Tokens with coordinates: the definition, what it shares with positions, and what it refuses."""

import math

import pytest
import torch
from backend_names import WHOLE as BACKENDS

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.attention.block_map import BlockMap

GRID = torch.cartesian_prod(torch.arange(4), torch.arange(5))


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def inputs(dtype=torch.float64, length=20):
    return (
        normal(2, 4, length, 8, dtype=dtype),
        normal(2, 2, length, 8, seed=1, dtype=dtype),
        normal(2, 2, length, 8, seed=2, dtype=dtype),
    )


def by_hand(query, key, value, gain, bias, points, window=math.inf):
    """One sum at a time; gain and bias are functions of the distance."""
    batch, heads, queries, size = query.shape
    group = heads // key.shape[1]
    out = torch.zeros_like(query)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                logits, values = [], []
                for j in range(key.shape[2]):
                    r = math.dist(points[i].tolist(), points[j].tolist())
                    if r < window:
                        score = float(query[b, h, i] @ key[b, h // group, j]) / math.sqrt(size)
                        logits.append(gain(r) * score + bias(r))
                        values.append(value[b, h // group, j])
                weights = torch.softmax(torch.tensor(logits, dtype=torch.float64), 0)
                out[b, h, i] = weights @ torch.stack(values)
    return out


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_oracle_is_the_law_of_n_dimensions(dimensions):
    points = torch.randint(-9, 9, (20, dimensions), generator=torch.Generator().manual_seed(0))
    tau = 3.0
    expected = by_hand(
        *inputs(),
        lambda r: math.sqrt(1 + 2 * dimensions * math.log1p(r / tau)),
        lambda r: -2 * dimensions * math.log1p(r / tau),
        points,
    )
    found = sia.scale_invariant_attention(
        *inputs(), tau=tau, is_causal=False, key_coordinates=points, backend="reference"
    )
    torch.testing.assert_close(found, expected)


def test_alibi_falls_with_the_euclidean_distance():
    expected = by_hand(*inputs(), lambda r: 1.0, lambda r: -0.3 * r, GRID, window=3)
    affine = sia.DistanceAffine.alibi(6, torch.full((4,), 0.3, dtype=torch.float64))
    found = sia.distance_affine_attention(
        *inputs(), affine, is_causal=False, key_coordinates=GRID, window=3, backend="reference"
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_a_line_coordinates_are_positions(backend):
    query, key, value = inputs(torch.float32, length=70)
    affine = sia.DistanceAffine(1 + 0.1 * normal(4, 100), normal(100, seed=3))
    places = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:70]
    for settings in ({"tau": 3.0}, {"affine": affine}, {"tau": 3.0, "window": 20}):
        function = (
            sia.distance_affine_attention
            if "affine" in settings
            else (sia.scale_invariant_attention)
        )
        as_positions, as_coordinates = (
            function(query, key, value, **settings, **where, is_causal=False, backend=backend)
            for where in ({"key_positions": places}, {"key_coordinates": places[:, None]})
        )
        torch.testing.assert_close(as_coordinates, as_positions)


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_may_be_some_of_the_keys(backend):
    query, key, value = inputs(torch.float32)
    settings = {"is_causal": False, "key_coordinates": GRID, "backend": backend}
    whole = sia.scale_invariant_attention(query, key, value, **settings)
    last = sia.scale_invariant_attention(query[:, :, 12:], key, value, **settings)
    torch.testing.assert_close(last, whole[:, :, 12:])
    first = sia.scale_invariant_attention(
        query[:, :, :8], key, value, query_coordinates=GRID[:8].expand(2, 8, 2).int(), **settings
    )
    torch.testing.assert_close(first, whole[:, :, :8])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_window_is_exact_where_float32_is_not(backend):
    # The squared distance and the window's are neighbours beyond 2^24.
    key_coordinates = torch.tensor([[0, 0], [8000, 1], [8001, 0], [8000, 0]])
    query_coordinates = torch.zeros(1, 2, dtype=torch.int32)
    query, key, value = normal(1, 1, 1, 2), normal(1, 1, 4, 2, seed=1), torch.eye(4)[None, None]
    for window, seen in ((8000, [0]), (8001, [0, 1, 3])):
        out = sia.scale_invariant_attention(
            query.float(),
            key.float(),
            value,
            tau=1e9,
            is_causal=False,
            window=window,
            query_coordinates=query_coordinates,
            key_coordinates=key_coordinates,
            backend=backend,
        )
        assert out[0, 0, 0].nonzero().squeeze(1).tolist() == seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_that_hides_a_distance_hides_what_it_is_part_of(backend):
    points = torch.tensor([[0, 0], [1, 0], [1, 1], [2, 0], [3, 0]])
    bias = torch.tensor([0.0, 0.0, -torch.inf, 0.0, 0.0])
    query, key, value = normal(1, 1, 1, 2), normal(1, 1, 5, 2, seed=1), torch.eye(5)[None, None]
    out = sia.distance_affine_attention(
        query.float(),
        key.float(),
        value,
        sia.DistanceAffine(torch.ones(5), bias),
        is_causal=False,
        query_coordinates=points[:1],
        key_coordinates=points,
        backend=backend,
    )
    # At the distances 0, 1 and 3, but neither at sqrt(2), which is between 1 and 2, nor at 2.
    assert out[0, 0, 0].nonzero().squeeze(1).tolist() == [0, 1, 4]


def test_no_block_of_a_plane_is_called_what_it_is_not():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        points = torch.randint(0, 20, (1, 40, 2), generator=generator).sort(1).values
        whole = Visibility(is_causal=False, window=6, key_coordinates=points)
        visibility = whole.checked(1, 40, 40, torch.device("cpu"))
        visibility = visibility.with_positions(40, 40, torch.device("cpu")).row(0)
        blocks = BlockMap(visibility, 7, 5)
        verdicts = blocks.every()
        for i in range(6):
            some, full = blocks.rows(i)
            assert torch.equal(some, verdicts[0][i])
            assert torch.equal(full, verdicts[1][i])
            for j in range(8):
                tile = visibility.visible[7 * i : 7 * i + 7, 5 * j : 5 * j + 5]
                assert some[j] or not tile.any()
                assert tile.all() or not full[j]
        assert not verdicts[0].all()


INTEGERS = [
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_coordinates_may_be_integers_of_any_size(dtype):
    settings = {"is_causal": False, "backend": "tiled"}
    for points in (GRID, GRID.expand(2, 20, 2)):
        expected, found = (
            sia.scale_invariant_attention(*inputs(), key_coordinates=it, **settings)
            for it in (points, points.to(dtype))
        )
        assert torch.equal(found, expected)


WRONG = [
    ({"is_causal": True}, ValueError, ["is_causal must be False", "pass is_causal=False"]),
    ({"sinks": 2}, ValueError, ["sinks must be 0", "got 2"]),
    ({"key_positions": torch.arange(20)}, ValueError, ["key_positions and key_coordinates"]),
    ({"query_positions": torch.arange(20)}, ValueError, ["query_positions", "exclude"]),
    (
        {"key_coordinates": None, "query_coordinates": GRID},
        ValueError,
        ["query_coordinates was given without key_coordinates"],
    ),
    ({"key_coordinates": GRID.float()}, TypeError, ["key_coordinates", "float32"]),
    ({"key_coordinates": [[0, 1]]}, TypeError, ["key_coordinates", "list"]),
    ({"key_coordinates": torch.arange(20)}, ValueError, ["[20, n] or [2, 20, n]", "(20,)"]),
    ({"key_coordinates": GRID[:7]}, ValueError, ["key_coordinates", "(7, 2)"]),
    ({"key_coordinates": GRID[:, :0]}, ValueError, ["1 to 8 coordinates", "(20, 0)"]),
    ({"key_coordinates": GRID.repeat(1, 5)}, ValueError, ["1 to 8 coordinates", "(20, 10)"]),
    ({"key_coordinates": GRID.to("meta")}, ValueError, ["key_coordinates", "meta"]),
    ({"query_coordinates": GRID[:, :1]}, ValueError, ["same number", "1 and 2"]),
    ({"key_coordinates": GRID << 24}, ValueError, ["-2**24 to 2**24 - 1", "0 to 67108864"]),
    (
        {"key_coordinates": torch.full((20, 2), 2**24, dtype=torch.uint32)},
        ValueError,
        ["-2**24 to 2**24 - 1", "16777216 to 16777216"],
    ),
    (
        {"key_coordinates": torch.full((20, 2), -1).to(torch.uint64)},
        ValueError,
        ["18446744073709551615 to 18446744073709551615"],
    ),
]


@pytest.mark.parametrize(("changed", "error", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_arguments_are_refused_in_words(changed, error, words):
    settings = {"is_causal": False, "key_coordinates": GRID, **changed}
    with pytest.raises(error) as caught:
        sia.scale_invariant_attention(*inputs(), **settings)
    for word in words:
        assert word in str(caught.value)


def test_more_queries_than_keys_need_coordinates():
    query, key, value = inputs()
    with pytest.raises(ValueError, match="query_coordinates must be given: there are 20 queries"):
        sia.scale_invariant_attention(
            query, key[:, :, :9], value[:, :, :9], is_causal=False, key_coordinates=GRID[:9]
        )


def test_tables_must_reach_the_diagonal():
    settings = {"is_causal": False, "key_coordinates": GRID}
    sia.distance_affine_attention(*inputs(), sia.DistanceAffine.identity(6), **settings)
    with pytest.raises(
        ValueError, match=r"cover 5 distances.*needs 6 \(its largest distance is 5\)"
    ):
        sia.distance_affine_attention(*inputs(), sia.DistanceAffine.identity(5), **settings)
    # The distance sqrt(8) is within a window of 3, and between the entries 2 and 3.
    settings["window"] = 3
    sia.distance_affine_attention(*inputs(), sia.DistanceAffine.identity(4), **settings)
    with pytest.raises(ValueError, match=r"cover 3 distances.*needs 4"):
        sia.distance_affine_attention(*inputs(), sia.DistanceAffine.identity(3), **settings)


@pytest.mark.parametrize("backend", ["flex", "flex_flash", "triton"])
def test_backends_without_coordinates_say_so(backend):
    from scale_invariant_attention.attention.backends import BACKENDS as KNOWN
    from scale_invariant_attention.attention.contract import checked_call

    query, key, value = inputs(torch.float32)
    visibility = Visibility(is_causal=False, key_coordinates=GRID)
    call = checked_call(query, key, value, affine=None, tau=10.0, visibility=visibility)
    assert KNOWN[backend].unsupported_reason(call, False) == "it has no coordinates; use 'tiled'"


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_gradients_match_finite_differences(backend):
    query, key, value = (t[:1, :, :6, :2].detach() for t in inputs())
    settings = {"is_causal": False, "key_coordinates": GRID[7:13], "backend": backend}
    gain, bias = 1 + normal(4, 6, seed=3) / 5, normal(6, seed=4)

    def transformed(query, key, value, tau):
        return sia.scale_invariant_attention(query, key, value, tau=tau, **settings)

    def tables(query, key, value, gain, bias):
        affine = sia.DistanceAffine(gain, bias)
        return sia.distance_affine_attention(query, key, value, affine, **settings)

    tau = torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=torch.float64)
    for function, learned in ((transformed, (tau,)), (tables, (gain, bias))):
        leaves = [t.requires_grad_() for t in (query, key, value, *learned)]
        assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_call_takes_coordinates(backend):
    query, key, value = inputs(torch.float32)

    def call(query, points):
        return sia.scale_invariant_attention(
            query, key, value, is_causal=False, key_coordinates=points, backend=backend
        )

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, GRID), call(query, GRID))
    if backend == "reference":
        return
    # While torch traces, there are no values to check: the operator checks them when it runs.
    with pytest.raises(ValueError, match=r"coordinates must be from -2\*\*24"):
        compiled(query, GRID << 24)
