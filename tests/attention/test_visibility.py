"""Visibility: its fields are the keywords of the op, and its block map never claims too much."""

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest
import torch
from contract_checks import call_of
from random_contracts import draw

import scale_invariant_attention as sia
from scale_invariant_attention.attention.block_map import BlockMap
from scale_invariant_attention.attention.visibility import (
    Visibility,
    VisibilityKeywords,
)

FUNCTIONS = (sia.scale_invariant_attention, sia.distance_affine_attention, sia.backend_for)


def test_the_keywords_are_the_fields():
    types = {field.name: field.type for field in fields(Visibility)}
    assert list(get_type_hints(VisibilityKeywords).items()) == list(types.items())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_show_every_field_with_its_default(function):
    parameters = inspect.signature(function).parameters
    for field in fields(Visibility):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"        {field.name}: " in sia.scale_invariant_attention.__doc__


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_unknown_keyword_is_refused_by_the_function_called(function):
    affine = {} if function is sia.scale_invariant_attention else {"affine": None}
    query = torch.zeros(1, 1, 1, 1)
    with pytest.raises(
        TypeError, match=rf"^{function.__name__}\(\) got an unexpected .* 'windows'"
    ):
        function(query, query, query, **affine, windows=3)


def blocks_of(matrix, rows, columns):
    """The tiles of a matrix by block index."""
    for i in range(0, matrix.shape[0], rows):
        for j in range(0, matrix.shape[1], columns):
            yield i // rows, j // columns, matrix[i : i + rows, j : j + columns]


def test_no_block_is_called_what_it_is_not():
    for seed in range(300):
        whole = call_of(draw(seed, long_ones=False)).visibility_with_positions()
        for row in range(whole.rows):
            visibility = whole.row(row)
            visible = visibility.visible
            verdicts = BlockMap(visibility, 7, 5)
            for i, j, tile in blocks_of(visible, 7, 5):
                some, full = verdicts.rows(i)
                assert some[j] or not tile.any(), seed
                assert tile.all() or not full[j], seed


def test_all_rows_at_once_are_the_rows_one_by_one():
    for seed in range(50):
        visibility = call_of(draw(seed, long_ones=False)).visibility_with_positions().row(0)
        verdicts = BlockMap(visibility, 7, 5)
        blocks = verdicts.query_low.shape[0]
        some, full = (t.expand(blocks, -1) for t in verdicts.rows(torch.arange(blocks)[:, None]))
        for i in range(blocks):
            one_some, one_full = verdicts.rows(i)
            assert torch.equal(some[i], one_some)
            assert torch.equal(full[i], one_full)


def visibility_of(**settings):
    positions = torch.arange(64)
    return Visibility(query_positions=positions, key_positions=positions, **settings)


def verdicts_of(visibility, block=8):
    blocks = BlockMap(visibility, block, block)
    count = blocks.query_low.shape[0]
    some, full = blocks.rows(torch.arange(count)[:, None])
    return some.expand(count, -1), full.expand(count, -1)


def test_the_causal_triangle_is_seen_exactly():
    some, full = verdicts_of(visibility_of())
    assert torch.equal(some, torch.ones(8, 8).tril().bool())
    assert torch.equal(full, torch.ones(8, 8).tril(-1).bool())


def test_a_window_leaves_a_band_and_sinks_a_column():
    some, _ = verdicts_of(visibility_of(window=8))
    assert torch.equal(some, (torch.ones(8, 8).tril() - torch.ones(8, 8).tril(-2)).bool())
    some, _ = verdicts_of(visibility_of(window=8, sinks=2))
    assert some[:, 0].all()


def test_documents_leave_blocks_on_the_diagonal():
    documents = torch.arange(64) // 16
    settings = {"query_documents": documents, "key_documents": documents, "is_causal": False}
    some, full = verdicts_of(visibility_of(**settings))
    expected = torch.block_diag(*[torch.ones(2, 2)] * 4).bool()
    assert torch.equal(some, expected)
    assert torch.equal(full, expected)


def test_padding_empties_its_blocks():
    some, full = verdicts_of(visibility_of(key_mask=torch.arange(64) >= 20, is_causal=False))
    assert torch.equal(some, (torch.arange(8) >= 2).expand(8, 8))
    assert torch.equal(full, (torch.arange(8) >= 3).expand(8, 8))
