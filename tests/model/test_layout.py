"""Positions and visibility of tokens: causality, translation, packed documents, padding."""

import pytest
import torch
from backend_names import WHOLE
from tiny_models import (
    ABSOLUTE,
    BY_CONTEXT,
    CASES,
    KINDS,
    LOCAL,
    TRAINED,
    VOCABULARY,
    assert_same,
    plain_logits,
    random_tokens,
    tiny_model,
    varied,
)

from scale_invariant_attention.model.inputs import (
    default_positions,
    document_extents,
    document_runs,
)

LENGTH = 2 * TRAINED - 3


@pytest.mark.parametrize("backend", WHOLE)
@pytest.mark.parametrize("case", CASES)
def test_later_tokens_change_no_bit_of_earlier_outputs(case, backend):
    model = tiny_model(case, torch.float32, backend=backend)
    tokens = random_tokens(2, LENGTH)
    changed = tokens.clone()
    changed[:, 10:] = (tokens[:, 10:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert (before[:, 10:] != after[:, 10:]).any(-1).all()


@pytest.mark.parametrize("case", [case for case in KINDS if case not in LOCAL])
def test_outputs_depend_on_no_later_and_on_every_earlier_token(case):
    model = tiny_model(case)
    tokens = torch.randperm(VOCABULARY)[None, :TRAINED]
    logits = model(tokens)[0]
    weights = torch.randn(VOCABULARY, dtype=torch.float64)
    for row in range(TRAINED):
        (grad,) = torch.autograd.grad(
            logits[row] @ weights, model.embedding.weight, retain_graph=True
        )
        size = grad[tokens[0]].abs().amax(1)
        assert (size[: row + 1] > 0).all() and (size[row + 1 :] == 0).all()


@pytest.mark.parametrize("case", KINDS)
def test_a_text_can_be_cut_off_at_the_same_context_length(case):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    whole = model(tokens, context_length=LENGTH)
    for length in (1, 5, TRAINED + 1):
        part = model(tokens[:, :length], context_length=LENGTH)
        assert_same(part, whole[:, :length])


@pytest.mark.parametrize(("case", "shift"), varied([1, -7, 10**6, [10**6, 3]]))
def test_translation(case, shift):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    positions = torch.arange(LENGTH) + (
        torch.tensor(shift)[:, None] if isinstance(shift, list) else shift
    )
    logits = model(tokens, positions=positions)
    if case in ABSOLUTE:
        # They count what a token at this position would see.
        assert not torch.allclose(logits, model(tokens))
        if shift != -7:
            rows = positions.expand(2, -1).tolist()
            expected = torch.stack(
                [plain_logits(model, row, p) for row, p in zip(tokens, rows, strict=True)]
            )
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-8)
    else:
        # An angle of a million radians has lost six more of float64's sixteen digits.
        torch.testing.assert_close(logits, model(tokens), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int64])
@pytest.mark.parametrize("case", ["rope", "logn-rope", "yarn", "scale-invariant-p-rope"])
def test_positions_with_gaps(case, dtype):
    model = tiny_model(case)
    tokens = random_tokens(2, 7)
    positions = torch.tensor([[0, 1, 4, 5, 20, 21, 22], [3, 5, 6, 7, 8, 9, 11]], dtype=dtype)
    everything = torch.ones_like(tokens, dtype=torch.bool)
    for mask in (None, everything):
        logits = model(tokens, positions=positions, token_mask=mask)
        for row in range(2):
            assert_same(logits[row], plain_logits(model, tokens[row], positions[row].tolist()))


# Lengths of documents for each of two rows: a single token, several, and longer than trained.
PACKING = [[5, 1, TRAINED + 4, 3], [TRAINED + 2, 5, 4, 2]]


def packed(numbers):
    return torch.tensor(
        [
            [number for number, length in zip(numbers, lengths, strict=True) for _ in range(length)]
            for lengths in PACKING
        ]
    )


def assert_separate(model, tokens, logits):
    for row, lengths in enumerate(PACKING):
        for text, found in zip(tokens[row].split(lengths), logits[row].split(lengths), strict=True):
            assert_same(found, model(text[None])[0])
            assert_same(found, plain_logits(model, text))


@pytest.mark.parametrize(
    ("case", "numbers"), varied([(0, 1, 2, 3), (7, 5, 7, -2), (2**40, 0, 2**40, 0)])
)
def test_packed_documents_are_separate(case, numbers):
    model = tiny_model(case)
    tokens = random_tokens(2, sum(PACKING[0]))
    assert_separate(model, tokens, model(tokens, documents=packed(numbers)))


@pytest.mark.parametrize("case", KINDS)
def test_packed_documents_with_their_positions(case):
    model = tiny_model(case)
    tokens = random_tokens(2, sum(PACKING[0]))
    documents = packed((7, 5, 7, 5))
    positions = torch.tensor([[i for n in lengths for i in range(n)] for lengths in PACKING])
    assert_separate(model, tokens, model(tokens, documents=documents, positions=positions))


@pytest.mark.parametrize("backend", WHOLE)
@pytest.mark.parametrize("case", ["rope-ntk", "infini-rope", "delta rule"])
def test_a_document_changes_no_bit_of_another(case, backend):
    model = tiny_model(case, torch.float32, backend=backend)
    tokens = random_tokens(1, 20)
    documents = torch.tensor([0] * 6 + [1] * 14, dtype=torch.uint8)
    changed = tokens.clone()
    changed[:, :6] += 1
    with torch.no_grad():
        before = model(tokens, documents=documents)
        after = model(changed % VOCABULARY, documents=documents)
    assert torch.equal(before[:, 6:], after[:, 6:]) and not torch.equal(before, after)


def padded(side, lengths=(LENGTH, 1, TRAINED + 1, 4)):
    order = torch.arange(LENGTH)
    given = torch.tensor(lengths)[:, None]
    return order >= LENGTH - given if side == "left" else order < given


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", KINDS)
def test_padding_on_either_side_changes_nothing(case, side):
    model = tiny_model(case)
    tokens, mask = random_tokens(4, LENGTH), padded(side)
    logits = model(tokens, token_mask=mask)
    assert torch.isfinite(logits).all()
    for row in range(4):
        text = tokens[row][mask[row]]
        assert_same(logits[row][mask[row]], plain_logits(model, text))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("backend", WHOLE)
def test_what_stands_in_the_padding_changes_no_bit(backend, side):
    model = tiny_model("logn-ntk", torch.float32, backend=backend)
    tokens, mask = random_tokens(4, LENGTH), padded(side)
    others = torch.where(mask, tokens, (tokens + 1) % VOCABULARY)
    with torch.no_grad():
        before, after = (model(t, token_mask=mask) for t in (tokens, others))
    assert torch.equal(before[mask], after[mask]) and not torch.equal(before, after)


@pytest.mark.parametrize("case", KINDS)
def test_holes_documents_and_rows_of_padding(case):
    """Padding around and inside documents, and one row that is nothing else."""
    model = tiny_model(case)
    tokens = random_tokens(2, 20)
    documents = torch.tensor([0] * 8 + [3] * 12)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, [0, 1, 5, 7, 8, 12]] = False
    mask[1] = False
    logits = model(tokens, documents=documents, token_mask=mask)
    assert torch.isfinite(logits).all()
    for part in (documents == 0, documents == 3):
        real = part & mask[0]
        assert_same(logits[0][real], plain_logits(model, tokens[0][real]))
    loss = model(tokens, targets=tokens, documents=documents, token_mask=mask)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_context_length_overrules_that_of_padded_rows_and_documents(case):
    model = tiny_model(case)
    tokens, mask = random_tokens(4, LENGTH), padded("left")
    lengths = torch.tensor([40, 5, 13, 60])
    logits = model(tokens, token_mask=mask, context_length=lengths)
    for row in range(4):
        expected = plain_logits(model, tokens[row][mask[row]], context_length=int(lengths[row]))
        assert_same(logits[row][mask[row]], expected)


def test_no_rows():
    model = tiny_model("yarn")
    tokens = torch.zeros(0, 5, dtype=torch.long)
    positions = torch.arange(5)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    for given in ({}, {"positions": positions}, {"documents": positions}, {"token_mask": mask}):
        assert model(tokens, **given).shape == (0, 5, VOCABULARY)


def test_documents_are_runs_of_equal_numbers():
    documents = torch.tensor([[4, 4, 4, 4], [9, 1, 9, 1], [0, 0, -1, 0]])
    assert document_runs(documents).tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 2]]
    extremes = torch.tensor([[2**63 - 1, -(2**63), -(2**63)]])
    assert document_runs(extremes).tolist() == [[0, 1, 1]]


def test_positions_count_real_tokens_of_each_document():
    documents = torch.tensor([[0, 0, 0, 1, 1, 2]])
    mask = torch.tensor([[False, True, True, False, True, True]])
    assert default_positions(documents, mask).tolist() == [[0, 0, 1, 0, 0, 0]]
    assert default_positions(None, mask).tolist() == [[0, 0, 1, 1, 2, 3]]
    assert default_positions(documents, None).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_a_context_is_as_long_as_its_positions_reach():
    positions = torch.tensor([[10**12, 10**12 + 5, 3, 4, 0]])
    runs = torch.tensor([[0, 0, 1, 1, 2]])
    mask = torch.tensor([[True, True, True, True, False]])
    first, lengths = document_extents(positions, runs, mask)
    assert first[:, :4].tolist() == [[10**12, 10**12, 3, 3]]
    assert lengths.tolist() == [[6, 6, 2, 2, 1]]
    assert document_extents(positions[:, 2:], None, mask[:, 2:])[1].tolist() == [[2]]
    assert document_extents(positions[:, 2:], None, None)[1].tolist() == [[5]]


def test_positions_far_apart_take_no_memory_where_nothing_looks_across():
    model = tiny_model("rope", torch.float32)
    tokens = random_tokens(1, 8)
    far = 10**12
    with torch.no_grad():
        alone = model(tokens[:, 4:])
        after_padding = torch.tensor([[0, 0, 0, 0, far, far + 1, far + 2, far + 3]])
        mask = after_padding > 0
        assert_close(model(tokens, positions=after_padding, token_mask=mask)[:, 4:], alone)
        packed = torch.tensor([[0, 1, 2, 3, far, far + 1, far + 2, far + 3]])
        documents = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        assert_close(model(tokens, positions=packed, documents=documents)[:, 4:], alone)


def assert_close(found, expected):
    # Angles at positions of 10**12 are known to 1e-4, in float64.
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_where_padding_stands_does_not_count(case):
    model = tiny_model(case)
    tokens = random_tokens(1, 9)
    mask = torch.tensor([[False] * 2 + [True] * 5 + [False] * 2])
    positions = torch.tensor([-50, 900, 0, 1, 2, 3, 4, 70, -80])
    found = model(tokens, positions=positions, token_mask=mask)
    assert_same(found[mask], plain_logits(model, tokens[mask]))
    documents = torch.zeros(9, dtype=torch.long)
    packed = model(tokens, positions=positions, token_mask=mask, documents=documents)
    assert_same(packed[mask], found[mask])
