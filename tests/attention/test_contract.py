"""Bad input is refused in words: the argument, the value, and what would be right."""

import math

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention import DistanceAffine

B, HQ, HK, L, D = 2, 4, 2, 6, 8
GOOD = {
    "query": torch.zeros(B, HQ, L, D),
    "key": torch.zeros(B, HK, L, D),
    "value": torch.zeros(B, HK, L, D),
}

CASES = [
    ({"query": torch.zeros(HQ, L, D)}, ValueError, ["query", "(4, 6, 8)", "[batch, heads"]),
    ({"key": torch.zeros(B, HK, L)}, ValueError, ["key", "(2, 2, 6)"]),
    ({"query": [1.0]}, TypeError, ["query", "list"]),
    ({"query": GOOD["query"].long()}, TypeError, ["query", "torch.int64", "float32"]),
    ({"value": GOOD["value"].bool()}, TypeError, ["value", "torch.bool"]),
    ({"query": GOOD["query"].to(torch.float8_e4m3fn)}, TypeError, ["query", "float8"]),
    ({"query": GOOD["query"].to(torch.complex64)}, TypeError, ["query", "complex"]),
    ({"key": GOOD["key"].double()}, TypeError, ["same dtype", "torch.float64"]),
    ({"query": torch.zeros(3, HQ, L, D)}, ValueError, ["batch", "(3, 4, 6, 8)"]),
    ({"value": torch.zeros(B, 1, L, D)}, ValueError, ["heads", "(2, 1, 6, 8)"]),
    ({"query": torch.zeros(B, 3, L, D)}, ValueError, ["multiple", "(2, 3, 6, 8)"]),
    ({"value": torch.zeros(B, HK, 5, D)}, ValueError, ["length", "(2, 2, 5, 8)"]),
    ({"query": torch.zeros(B, HQ, L, 7)}, ValueError, ["head_dim", "(2, 4, 6, 7)"]),
    ({"query": torch.zeros(B, 0, L, D)}, ValueError, ["query", "at least one head"]),
    ({"key": GOOD["key"].to("meta")}, ValueError, ["key", "meta", "cpu"]),
    ({"tau": 0.0}, ValueError, ["tau", "positive", "0.0"]),
    ({"tau": -1}, ValueError, ["tau", "-1"]),
    ({"tau": math.nan}, ValueError, ["tau", "nan"]),
    ({"tau": math.inf}, ValueError, ["tau", "inf"]),
    ({"attn_mask": None}, TypeError, ["attn_mask", "key_mask"]),
    ({"enable_gqa": True}, TypeError, ["enable_gqa", "leave it out"]),
    ({"tau": "10"}, TypeError, ["tau", "'10'"]),
    ({"tau": True}, TypeError, ["tau", "True"]),
    ({"tau": None}, TypeError, ["tau", "None"]),
    ({"tau": torch.tensor([1.0, -2.0, 1.0, 1.0])}, ValueError, ["tau", "-2.0"]),
    ({"tau": torch.tensor(math.nan)}, ValueError, ["tau", "nan"]),
    ({"tau": torch.ones(3)}, ValueError, ["tau", "[4]", "(3,)"]),
    ({"tau": torch.tensor(10)}, TypeError, ["tau", "torch.int64"]),
    ({"tau": torch.ones(4, device="meta")}, ValueError, ["tau", "meta"]),
    ({"is_causal": 1}, TypeError, ["is_causal", "1"]),
    ({"scale": math.inf}, ValueError, ["scale", "inf"]),
    ({"scale": "1"}, TypeError, ["scale", "'1'"]),
    ({"window": 0}, ValueError, ["window", "at least 1", "0"]),
    ({"window": -5}, ValueError, ["window", "-5"]),
    ({"window": 2.5}, TypeError, ["window", "2.5"]),
    ({"window": True}, TypeError, ["window", "True"]),
    ({"sinks": -1}, ValueError, ["sinks", "-1"]),
    ({"sinks": None}, TypeError, ["sinks", "None"]),
    ({"query_positions": torch.zeros(L)}, TypeError, ["query_positions", "float32"]),
    ({"key_positions": torch.zeros(L, dtype=torch.bool)}, TypeError, ["key_positions", "bool"]),
    ({"key_positions": [0, 1]}, TypeError, ["key_positions", "list"]),
    ({"key_positions": torch.arange(5)}, ValueError, ["key_positions", "[6]", "(5,)"]),
    ({"query_positions": torch.zeros(3, L).long()}, ValueError, ["query_positions", "(3, 6)"]),
    ({"query_positions": torch.arange(L, device="meta")}, ValueError, ["query_positions", "meta"]),
    ({"key_mask": torch.ones(B, L)}, TypeError, ["key_mask", "float32", "bool"]),
    ({"key_mask": torch.ones(L, dtype=torch.bool)}, ValueError, ["key_mask", "[2, 6]", "(6,)"]),
    ({"key_mask": [True] * L}, TypeError, ["key_mask", "list"]),
    ({"key_documents": torch.zeros(L)}, TypeError, ["key_documents", "float32"]),
    ({"query_documents": torch.zeros(L).long()}, ValueError, ["query_documents", "key_documents"]),
    ({"backend": "cuda"}, ValueError, ["backend", "'cuda'", "'auto'", "'reference'", "'tiled'"]),
    (
        {"query": torch.zeros(B, HQ, 9, D), "key_positions": torch.arange(L)},
        ValueError,
        ["query_positions", "9 queries"],
    ),
]


@pytest.mark.parametrize(("changed", "error", "words"), CASES, ids=lambda x: str(x)[:40])
def test_bad_arguments_are_refused_in_words(changed, error, words):
    with pytest.raises(error) as caught:
        sia.scale_invariant_attention(**{**GOOD, **changed})
    for word in words:
        assert word in str(caught.value)


AFFINE_CASES = [
    (lambda: None, TypeError, ["affine", "DistanceAffine"]),
    (lambda: (torch.ones(6), torch.ones(6)), TypeError, ["affine", "tuple"]),
    (lambda: DistanceAffine.identity(5), ValueError, ["5 distances", "needs 6"]),
    (lambda: DistanceAffine(torch.ones(3, 6), torch.ones(6)), ValueError, ["gain", "3", "4 heads"]),
    (lambda: DistanceAffine(torch.ones(6), torch.ones(3, 6)), ValueError, ["bias", "3", "4 heads"]),
    (
        lambda: DistanceAffine(torch.ones(6), torch.ones(7)),
        ValueError,
        ["6", "7", "same distances"],
    ),
    (lambda: DistanceAffine(torch.ones(6).long(), torch.ones(6)), TypeError, ["gain", "int64"]),
    (lambda: DistanceAffine(torch.ones(1, 1, 6), torch.ones(6)), ValueError, ["gain", "(1, 1, 6)"]),
    (lambda: DistanceAffine(torch.ones(0), torch.ones(0)), ValueError, ["gain", "length >= 1"]),
    (lambda: DistanceAffine([1.0], torch.ones(1)), TypeError, ["gain", "list"]),
    (lambda: DistanceAffine(torch.ones(6), torch.ones(6, device="meta")), ValueError, ["device"]),
    (lambda: DistanceAffine.identity(6, device="meta"), ValueError, ["affine.gain", "meta"]),
    (lambda: DistanceAffine.identity(0), ValueError, ["length", "0"]),
    (lambda: DistanceAffine.identity(2.5), ValueError, ["length", "2.5"]),
    (lambda: DistanceAffine.alibi(6, torch.ones(2, 2)), ValueError, ["slopes"]),
    (lambda: DistanceAffine.scale_invariant(6, torch.ones(2, 2)), ValueError, ["tau", "(2, 2)"]),
    (lambda: DistanceAffine.scale_invariant(6, -1.0), ValueError, ["tau", "-1.0"]),
    (lambda: DistanceAffine.scale_invariant(6, sigma=0.0), ValueError, ["sigma", "0.0"]),
    (
        lambda: DistanceAffine.scale_invariant(6, sigma=-torch.ones(2)),
        ValueError,
        ["sigma", "-1.0"],
    ),
    (lambda: DistanceAffine.scale_invariant(6, mu=torch.ones(2, 2)), ValueError, ["mu", "(2, 2)"]),
]


@pytest.mark.parametrize(("make", "error", "words"), AFFINE_CASES)
def test_bad_tables_are_refused_in_words(make, error, words):
    with pytest.raises(error) as caught:
        sia.distance_affine_attention(**GOOD, affine=make())
    for word in words:
        assert word in str(caught.value)


def test_tables_must_reach_the_largest_distance_of_explicit_positions():
    settings = {"query_positions": torch.arange(100, 106), "key_positions": torch.arange(L)}
    with pytest.raises(ValueError, match=r"cover 105 distances.*needs 106"):
        sia.distance_affine_attention(**GOOD, affine=DistanceAffine.identity(105), **settings)
    sia.distance_affine_attention(**GOOD, affine=DistanceAffine.identity(106), **settings)
    # Rows are judged one by one: a late row's queries never meet an early row's keys.
    late = torch.stack([torch.arange(L), torch.arange(L) + 1000])
    settings = {"query_positions": late, "key_positions": late}
    sia.distance_affine_attention(**GOOD, affine=DistanceAffine.identity(L), **settings)


def test_tables_need_not_reach_beyond_the_window():
    sia.distance_affine_attention(**GOOD, affine=DistanceAffine.identity(3), window=3)
    with pytest.raises(ValueError, match="needs 4"):
        sia.distance_affine_attention(**GOOD, affine=DistanceAffine.identity(3), window=4)


def test_without_causality_the_largest_distance_may_lie_ahead():
    settings = {"query_positions": torch.arange(L), "key_positions": torch.arange(50, 56)}
    causal = DistanceAffine.identity(1)
    sia.distance_affine_attention(**GOOD, affine=causal, **settings)
    with pytest.raises(ValueError, match="needs 56"):
        sia.distance_affine_attention(**GOOD, affine=causal, is_causal=False, **settings)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_positions_of_any_integer_dtype(dtype):
    query = torch.randn(1, 2, 6, 4)
    expected = sia.scale_invariant_attention(query, query, query)
    positions = torch.arange(6, dtype=dtype)
    found = sia.scale_invariant_attention(
        query, query, query, query_positions=positions, key_positions=positions
    )
    torch.testing.assert_close(found, expected)
