"""The memory of Infini-attention against its formulas, token by token, and its properties."""

import math

import pytest
import torch

from scale_invariant_attention.schemes import CompressiveMemory, Scheme, SchemeLayer
from scale_invariant_attention.schemes.memory import MemoryLayer, Segments, positive

HEADS, LENGTH, SIZE = 2, 23, 5
RULES = pytest.mark.parametrize("rule", ["linear", "delta"])


def inputs(*, length=LENGTH, dtype=torch.float64, scale=1.0, batch=2):
    generator = torch.Generator().manual_seed(length)
    shape = (3, batch, HEADS, length, SIZE)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).unbind()


def whole(tokens, length):
    """The segments of whole rows without padding."""
    return Segments(-(-tokens // length), length)


def retrieved(query, key, value, length, rule="linear"):
    memory = MemoryLayer(HEADS, length, rule)
    return memory(query, key, value, whole(query.shape[2], length))[0]


def by_token(query, key, value, length, rule):
    """What each query of one head ``[L, D]`` retrieves: equations 7 to 9 of arXiv:2404.07143."""

    def s(x):
        return [each + 1 if each > 0 else math.exp(each) for each in x.tolist()]

    def read(features, memory, norm):
        weight = sum(f * n for f, n in zip(features, norm, strict=True))
        return [
            sum(f * row[c] for f, row in zip(features, memory, strict=True)) / weight
            for c in range(size)
        ]

    dims, size = key.shape[1], value.shape[1]
    memory = [[0.0] * size for _ in range(dims)]
    norm = [0.0] * dims
    rows = []
    for start in range(0, len(query), length):
        end = min(start + length, len(query))
        for i in range(start, end):
            rows.append([0.0] * size if start == 0 else read(s(query[i]), memory, norm))
        before, before_norm = [row[:] for row in memory], norm[:]
        for j in range(start, end):
            features, new = s(key[j]), value[j].tolist()
            if rule == "delta" and start > 0:
                known = read(features, before, before_norm)
                new = [a - b for a, b in zip(new, known, strict=True)]
            for d in range(dims):
                norm[d] += features[d]
                for c in range(size):
                    memory[d][c] += features[d] * new[c]
    return torch.tensor(rows, dtype=torch.float64)


@RULES
@pytest.mark.parametrize("length", [1, 4, 5, 22, 23, 60])
def test_it_is_its_definition(rule, length):
    query, key, value = inputs()
    found = retrieved(query, key, value, length, rule)
    for row in range(2):
        for head in range(HEADS):
            cut = (it[row, head] for it in (query, key, value))
            expected = by_token(*cut, length, rule)
            torch.testing.assert_close(found[row, head], expected, rtol=0, atol=1e-12)


def test_the_linear_rule_is_a_mean_of_the_values_of_earlier_segments():
    """A second form of the same: weights s(q) . s(k), which add up to 1."""
    query, key, value = inputs()
    s = torch.nn.functional.elu
    weights = (s(query) + 1) @ (s(key) + 1).mT
    segment = torch.arange(LENGTH) // 4
    weights = weights * (segment[:, None] > segment)
    weights = weights / weights.sum(-1, keepdim=True)
    expected = torch.where(segment[:, None] > 0, weights @ value, 0.0)
    torch.testing.assert_close(retrieved(query, key, value, 4), expected, rtol=0, atol=1e-12)


@RULES
def test_a_token_changes_no_bit_in_its_segment_or_before_and_all_after(rule):
    query, key, value = inputs(dtype=torch.float32)
    before = retrieved(query, key, value, 4, rule)
    for at in (0, 3, 4, 10):
        for changed in (key, value):
            kept = changed[:, :, at].clone()
            changed[:, :, at] += 1.0
            after = retrieved(query, key, value, 4, rule)
            changed[:, :, at] = kept
            next_segment = 4 * (at // 4 + 1)
            assert torch.equal(after[:, :, :next_segment], before[:, :, :next_segment])
            assert (after[:, :, next_segment:] != before[:, :, next_segment:]).any(-1).all()


@RULES
def test_gradients_pass_through_all_segments(rule):
    given = [it[:1, :, :9, :3].requires_grad_() for it in inputs()]
    assert torch.autograd.gradcheck(lambda *it: retrieved(*it, 2, rule), given, fast_mode=True)
    last = retrieved(*given, 2, rule)[:, :, 8].sum()
    _, key, value = torch.autograd.grad(last, given)
    assert (key[:, :, :8].abs().amax(-1) > 0).all() and (value[:, :, :8].abs().amax(-1) > 0).all()
    assert not key[:, :, 8].any() and not value[:, :, 8].any()


def test_features_are_positive_and_precise():
    x = torch.linspace(-80, 80, 1001, dtype=torch.float64)
    expected = torch.where(x > 0, x + 1, x.exp())
    assert torch.equal(positive(x), expected)
    found = positive(x.float())
    assert (found > 0).all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
    at = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    positive(at).sum().backward()
    torch.testing.assert_close(at.grad, torch.tensor([math.exp(-1), 1.0, 1.0]))


@RULES
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("gate", [0.0, -1e4, 1e4])
def test_an_empty_memory_gives_zeros_and_finite_gradients(rule, scale, gate):
    """Queries and keys so large that all features are 0 included."""
    query, key, value = inputs(dtype=torch.float32)
    query, key = (-(scale * it).abs() for it in (query, key))
    given = [it.requires_grad_() for it in (query, key, value)]
    memory = MemoryLayer(HEADS, 4, rule)
    torch.nn.init.constant_(memory.gate, gate)
    out, _ = memory(*given, whole(LENGTH, 4))
    assert not out[:, :, :4].any()
    mixed = memory.mix(out, torch.ones_like(out))
    grads = torch.autograd.grad(mixed.square().sum(), [*given, memory.gate])
    assert all(it.isfinite().all() for it in (mixed, *grads))


@RULES
def test_a_binding_that_is_stored_already(rule):
    """The delta rule leaves M as it is, and counts the key all the same."""
    _, key, value = (it[:, :, :1] for it in inputs())
    memory = MemoryLayer(HEADS, 1, rule)
    _, first = memory(key, key, value, Segments(1, 1, end=1))
    _, second = memory(key, key, value, Segments(1, 1, end=1), first)
    times = 1 if rule == "delta" else 2
    torch.testing.assert_close(second.read[..., :-1], times * first.read[..., :-1])
    torch.testing.assert_close(second.read[..., -1], 2 * first.read[..., -1])


@RULES
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_in_float32(rule, autocast, dtype):
    query, key, value = inputs(length=3000, dtype=dtype, batch=1)
    exact = retrieved(*(it.double() for it in (query, key, value)), 8, rule)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = retrieved(query, key, value, 8, rule)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-4 * exact.abs().max()


@RULES
@pytest.mark.parametrize("chunks", [(1,) * LENGTH, (9, 3, 1, 10), (4, 4, 15), (LENGTH,)])
def test_a_text_may_come_in_parts(rule, chunks):
    query, key, value = inputs()
    memory, state, parts, start, length = MemoryLayer(HEADS, 4, rule), None, [], 0, 4
    for size in chunks:
        held = start % length
        end = held + size
        part = [it[:, :, start : start + size] for it in (query, key, value)]
        count = -(-end // length)
        segments = Segments(count, length if count > 1 else size, held * (count > 1), end=end)
        out, state = memory(*part, segments, state)
        parts.append(out)
        start += size
    expected = retrieved(query, key, value, length, rule)
    torch.testing.assert_close(torch.cat(parts, 2), expected, rtol=0, atol=1e-12)


def test_tokens_without_a_slot_neither_read_nor_write():
    """Two rows: padding on the left, and two documents that start anew, around one without a memory."""
    query, key, value = inputs()
    slots = torch.full((2, LENGTH), 12)
    slots[0, 11:] = torch.arange(12)
    slots[1, :6], slots[1, 10:15] = torch.arange(6), 8 + torch.arange(5) % 4
    slots[1, 14] = 12
    begins = torch.tensor([[True, False, False], [True, False, True]])
    for rule in ("linear", "delta"):
        memory = MemoryLayer(HEADS, 4, rule)
        out, _ = memory(query, key, value, Segments(3, 4, slots=slots, begins=begins))
        padded = [it[:1, :, 11:] for it in (query, key, value)]
        torch.testing.assert_close(out[:1, :, 11:], retrieved(*padded, 4, rule))
        first = [it[1:, :, :6] for it in (query, key, value)]
        torch.testing.assert_close(out[1:, :, :6], retrieved(*first, 4, rule))
        assert not out[:1, :, :11].any() and not out[1:, :, 6:].any()


def test_gates_mix_and_belong_to_heads():
    memory = MemoryLayer(3, 4, "linear").double()
    with torch.no_grad():
        memory.gate.copy_(torch.tensor([0.0, math.log(3), -math.inf], dtype=torch.float64))
    mixed = memory.mix(torch.full((1, 3, 1, 1), 8.0).double(), torch.zeros(1, 3, 1, 1).double())
    torch.testing.assert_close(mixed.flatten(), torch.tensor([4.0, 6.0, 0.0]).double())
    half = memory.mix(torch.ones(1, 3, 2, 1), torch.zeros(1, 3, 2, 1, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16


def test_gates_start_in_the_middle_and_reset_there():
    layer = SchemeLayer(Scheme(memory=CompressiveMemory(8)), HEADS)
    assert layer.memory.gate.tolist() == [0.0] * HEADS
    torch.nn.init.ones_(layer.memory.gate)
    layer.reset_parameters()
    assert layer.memory.gate.tolist() == [0.0] * HEADS


def test_a_segment_is_half_the_training_length_unless_it_is_given():
    assert CompressiveMemory(train_length=256).tokens_per_segment == 128
    assert CompressiveMemory(train_length=1).tokens_per_segment == 1
    assert CompressiveMemory(7, train_length=256).tokens_per_segment == 7
    with pytest.raises(ValueError, match="train_length is not set"):
        CompressiveMemory().build(HEADS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"segment_length": 0}, ValueError, "segment_length must be at least 1, got 0"),
        ({"segment_length": 2.5}, TypeError, "segment_length must be an integer, got 2.5"),
        ({"rule": "hebbian"}, ValueError, "rule must be one of linear, delta; got 'hebbian'"),
        ({"train_length": -1}, ValueError, "train_length must be at least 1, got -1"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        CompressiveMemory(**options)


def test_only_a_memory_fills_the_slot_and_only_then_it_is_shown():
    with pytest.raises(TypeError, match=r"memory must be an object .*CompressiveMemory\("):
        Scheme(memory=CompressiveMemory)
    assert "memory" not in repr(Scheme())
    assert "memory=CompressiveMemory(segment_length=4, rule='linear'" in repr(
        Scheme(memory=CompressiveMemory(4))
    )
