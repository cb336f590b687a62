"""The cache: cached equals uncached at every step, what it refuses, and the memory it takes."""

import copy

import pytest
import torch
from backend_names import WHOLE, takes_float64
from tiny_models import (
    BY_CONTEXT,
    KINDS,
    TRAINED,
    VOCABULARY,
    assert_same,
    plain_logits,
    random_tokens,
    tiny_config,
    tiny_model,
    varied,
)

from scale_invariant_attention.model import GPT
from scale_invariant_attention.model._cache import _GrowingTensor

LENGTH = 2 * TRAINED - 3
# A prompt and single tokens; chunks of several; single tokens from the start; all at once.
CHUNKS = [(7, *[1] * (LENGTH - 7)), (3, 1, 5, 2, LENGTH - 11), (1,) * LENGTH, (LENGTH,)]


@torch.no_grad()
def in_chunks(model, tokens, chunks, cache, **by_token):
    """Logits of all tokens, given in chunks; arguments ``[B, L]`` are cut with them."""
    parts, start = [], 0
    for size in chunks:
        part = slice(start, start + size)
        given = {name: value[:, part] for name, value in by_token.items()}
        parts.append(model(tokens[:, part], cache=cache, **given))
        start += size
        assert cache.length == start
    return torch.cat(parts, 1)


@pytest.mark.parametrize(("case", "chunks"), varied(CHUNKS))
def test_cached_equals_uncached_at_the_same_context_length(case, chunks):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    cache = model.new_cache(context_length=LENGTH + 2, room=5)
    found = in_chunks(model, tokens, chunks, cache)
    assert_same(found, model(tokens, context_length=LENGTH + 2))
    for row in range(2):
        assert_same(found[row], plain_logits(model, tokens[row], context_length=LENGTH + 2))


@pytest.mark.parametrize("backend", WHOLE)
@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "alibi", "logn-ntk"])
def test_cached_equals_uncached_in_float32(case, backend):
    model = tiny_model(case, torch.float32, backend=backend)
    tokens = random_tokens(2, LENGTH)
    cache = model.new_cache(context_length=LENGTH)
    found = in_chunks(model, tokens, CHUNKS[1], cache)
    with torch.no_grad():
        expected = model(tokens)
        exact = model.double()(tokens) if takes_float64(backend) else None
    if exact is not None:
        # Either is off by its own rounding.
        budget = 4 * (expected - exact).abs().max()
    else:
        budget = 100 * torch.finfo(torch.float32).eps * expected.abs().max()
    assert (found - expected).abs().max() <= budget


LEFT = torch.tensor([0, 5, 9, LENGTH - 1])[:, None]


@pytest.mark.parametrize("chunks", [(7, *[1] * (LENGTH - 7)), (3, 1, 5, 2, LENGTH - 11)])
@pytest.mark.parametrize("case", KINDS)
def test_left_padding_in_any_chunks(case, chunks):
    """Also of rows that are nothing but padding in the first chunk, and in all but the last."""
    model = tiny_model(case)
    tokens, mask = random_tokens(4, LENGTH), torch.arange(LENGTH) >= LEFT
    lengths = torch.tensor([30, 30, 40, 13])
    cache = model.new_cache(context_length=lengths, room=1)
    found = in_chunks(model, tokens, chunks, cache, token_mask=mask)
    assert torch.isfinite(found).all()
    for row in range(4):
        text = tokens[row][mask[row]]
        expected = plain_logits(model, text, context_length=int(lengths[row]))
        assert_same(found[row][mask[row]], expected)


@pytest.mark.parametrize("case", KINDS)
def test_the_mask_may_be_left_out_after_the_prompt(case):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    mask = torch.arange(LENGTH) >= torch.tensor([[0], [4]])
    cache = model.new_cache(context_length=LENGTH)
    found = [in_chunks(model, tokens[:, :9], (9,), cache, token_mask=mask[:, :9])]
    with torch.no_grad():
        found += [model(tokens[:, i : i + 1], cache=cache) for i in range(9, LENGTH)]
    expected = model(tokens, token_mask=mask, context_length=LENGTH)
    assert_same(torch.cat(found, 1)[mask], expected[mask])


@pytest.mark.parametrize("case", ["rope", "logn-rope", "yarn", "learned tau"])
def test_a_mask_may_come_after_tokens_without_one(case):
    """Right padding of a chunk: the row continues after its last token."""
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 6:9] = False
    cache = model.new_cache(context_length=LENGTH)
    with torch.no_grad():
        found = [model(tokens[:, :5], cache=cache)]
        found += [model(tokens[:, 5:11], token_mask=mask[:, 5:11], cache=cache)]
        found += [model(tokens[:, 11:], cache=cache)]
    found = torch.cat(found, 1)
    for row in range(2):
        expected = plain_logits(model, tokens[row][mask[row]], context_length=LENGTH)
        assert_same(found[row][mask[row]], expected)


@pytest.mark.parametrize("shift", [0, 3, -40, 10**6])
@pytest.mark.parametrize("case", KINDS)
def test_explicit_positions(case, shift):
    model = tiny_model(case)
    tokens = random_tokens(2, LENGTH)
    positions = torch.arange(LENGTH) * torch.tensor([[1], [2]]) + shift
    cache = model.new_cache(context_length=2 * LENGTH)
    found = in_chunks(model, tokens, CHUNKS[1], cache, positions=positions)
    assert_same(found, model(tokens, positions=positions, context_length=2 * LENGTH))


@pytest.mark.parametrize("shift", [5, -40])
def test_tokens_without_positions_follow_those_that_had_them(shift):
    model = tiny_model("logn-rope")
    tokens = random_tokens(2, 9)
    positions = torch.arange(9, dtype=torch.int32) + torch.tensor([[shift], [0]]).int()
    cache = model.new_cache()
    with torch.no_grad():
        found = [model(tokens[:, :4], positions=positions[:, :4], cache=cache)]
        found += [model(tokens[:, i : i + 1], cache=cache) for i in range(4, 9)]
    assert_same(torch.cat(found, 1), model(tokens, positions=positions))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", BY_CONTEXT)
def test_without_a_context_length_a_cache_ends_at_the_training_length(case, masked):
    model = tiny_model(case)
    tokens = random_tokens(2, TRAINED + 1)
    cache = model.new_cache()
    given = {"token_mask": torch.ones(2, 3, dtype=torch.bool)} if masked else {}
    with torch.no_grad():
        found = [model(tokens[:, :3], cache=cache, **given)]
        found += [model(tokens[:, i : i + 1], cache=cache) for i in range(3, TRAINED)]
        expected = model(tokens[:, :TRAINED], context_length=TRAINED)
        assert_same(torch.cat(found, 1), expected)
        with pytest.raises(ValueError, match=r"outgrown the context length.*12.*context_length="):
            model(tokens[:, TRAINED:], cache=cache)
    assert cache.length == TRAINED


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_a_long_first_call_settles_the_context_length(case):
    model = tiny_model(case)
    tokens = random_tokens(1, LENGTH)
    cache = model.new_cache()
    with torch.no_grad():
        assert_same(model(tokens, cache=cache), model(tokens))
        with pytest.raises(ValueError, match=f"outgrown .* {LENGTH}, .*context_length="):
            model(tokens[:, :1], cache=cache)


def test_a_row_that_outgrows_its_own_length_is_refused():
    model = tiny_model("rope-ntk")
    tokens = random_tokens(2, 6)
    cache = model.new_cache(context_length=torch.tensor([8, 5]))
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        with pytest.raises(ValueError, match=r"outgrown .*\[8, 5\]"):
            model(tokens[:, 5:], cache=cache)
        # Padding is no text.
        model(tokens[:, 5:], token_mask=torch.tensor([[True], [False]]), cache=cache)


@pytest.mark.parametrize("case", [case for case in KINDS if case not in BY_CONTEXT])
def test_the_other_schemes_go_on_for_ever(case):
    model = tiny_model(case)
    tokens = random_tokens(1, 3 * TRAINED)
    cache = model.new_cache(room=1)
    assert_same(in_chunks(model, tokens, [1] * (3 * TRAINED), cache), model(tokens))


class Failing:
    """Fails in the middle of the layers, once."""

    def __init__(self, attention, monkeypatch):
        self.attend, self.armed = attention.attend, False
        monkeypatch.setattr(attention, "attend", self)

    def __call__(self, *arguments):
        if self.armed:
            self.armed = False
            raise MemoryError
        return self.attend(*arguments)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "case", ["scale-invariant-p-rope", "yarn", "logn-p-rope", "infini-rope", "delta rule"]
)
def test_a_step_that_failed_can_be_repeated(case, masked, monkeypatch):
    model = tiny_model(case)
    failing = Failing(model.blocks[1].attention, monkeypatch)
    tokens = random_tokens(2, LENGTH)
    mask = torch.arange(LENGTH) >= torch.tensor([[0], [2 if masked else 0]])
    expected = model(tokens, token_mask=mask, context_length=LENGTH)
    cache = model.new_cache(context_length=LENGTH, room=1)
    found = []
    with torch.no_grad():
        for part in (slice(0, 4), slice(4, 5), slice(5, 12), slice(12, LENGTH)):
            given = {"token_mask": mask[:, part]} if masked else {}
            failing.armed = True
            with pytest.raises(MemoryError):
                # Other tokens than those that come: nothing of them may stay.
                model((tokens[:, part] + 1) % VOCABULARY, cache=cache, **given)
            assert cache.length == part.start
            found.append(model(tokens[:, part], cache=cache, **given))
    assert_same(torch.cat(found, 1)[mask], expected[mask])


def test_a_first_call_that_failed_settles_nothing(monkeypatch):
    """Neither the context length, nor the number of rows, nor the dtype."""
    model = tiny_model("yarn", torch.float32)
    failing = Failing(model.blocks[1].attention, monkeypatch)
    cache = model.new_cache()
    tokens = random_tokens(2, LENGTH)
    everything = torch.ones(2, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        for given in ({}, {"token_mask": everything}):
            failing.armed = True
            with pytest.raises(MemoryError), torch.autocast("cpu", torch.bfloat16):
                model(tokens, cache=cache, **given)
        found = model(tokens[:1, :5], cache=cache)
        torch.testing.assert_close(found, model(tokens[:1, :5], context_length=TRAINED))


def test_a_copy_goes_its_own_way():
    """As a search needs it."""
    model = tiny_model("scale-invariant-p-rope")
    tokens = random_tokens(2, 12)
    cache = model.new_cache()
    with torch.no_grad():
        model(tokens[:1, :8], cache=cache)
        other = copy.deepcopy(cache)
        first = model(tokens[:1, 8:], cache=cache)
        second = model(tokens[1:, 8:], cache=other)
        both = torch.stack([tokens[0], torch.cat([tokens[0, :8], tokens[1, 8:]])])
        assert_same(torch.cat([first, second]), model(both)[:, 8:])


def memories(cache):
    tensors = [*cache._keys, *cache._values, cache._positions, cache._token_mask]
    return [t.memory for t in tensors if t.memory is not None]


@pytest.mark.parametrize("masked", [False, True])
def test_memory_is_copied_seldom_and_holds_at_most_twice_the_text(masked):
    model = tiny_model("scale-invariant-p-rope", torch.float32)
    cache = model.new_cache(room=4)
    steps = 150
    addresses, tables = set(), set()
    kept = []  # so that no address is given twice
    with torch.no_grad():
        for step in range(steps):
            given = {"token_mask": torch.ones(1, 1, dtype=torch.bool)} if masked else {}
            model(random_tokens(1, 1), cache=cache, **given)
            kept += [memories(cache), *cache._affines]
            addresses.add(tuple(memory.data_ptr() for memory in memories(cache)))
            tables.add(id(cache._affines[0]))
            for memory in memories(cache):
                length = memory.shape[2 if memory.ndim == 4 else 1]
                assert step < length <= max(4, 2 * (step + 1))
            assert cache._affines[0].length <= max(4, 2 * (step + 1))
    assert len(memories(cache)) == (6 if masked else 4)
    assert len(addresses) <= 7 and len(tables) <= 10  # 4, 8, ..., 256


def test_memory_of_chunks():
    growing = _GrowingTensor(dim=1, room=10)
    start, addresses, kept = 0, set(), []
    for size in [3, 1, 20, 2, 2, 40, 1, 1, 1, 100, 7]:
        growing.write(torch.arange(start, start + size)[None], start)
        start += size
        kept.append(growing.memory)
        addresses.add(growing.memory.data_ptr())
        assert growing.read(start)[0].tolist() == list(range(start))
        assert growing.memory.shape[1] <= 2 * start + 10
    assert len(addresses) <= 7


def test_room_for_all_is_taken_at_once():
    model = tiny_model("rope")
    cache = model.new_cache(room=40)
    with torch.no_grad():
        model(random_tokens(1, 2), cache=cache)
        before = [memory.data_ptr() for memory in memories(cache)]
        assert all(memory.shape[2] == 40 for memory in memories(cache))
        for _ in range(38):
            model(random_tokens(1, 1), cache=cache)
    assert [memory.data_ptr() for memory in memories(cache)] == before


def test_no_gradients():
    model = tiny_model("rope")
    tokens = random_tokens(2, 5)
    cache = model.new_cache()
    with pytest.raises(RuntimeError, match=r"keeps no gradients.*torch.no_grad\(\)"):
        model(tokens, cache=cache)
    assert cache.length == 0
    with torch.inference_mode():
        found = model(tokens, cache=cache)
    assert_same(found.clone(), model(tokens))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert_same(model(tokens, cache=model.new_cache()), model(tokens))


@torch.no_grad()
def test_what_belongs_to_others_is_refused():
    model = tiny_model("rope")
    cache = model.new_cache()
    tokens = random_tokens(2, 5)
    model(tokens, cache=cache)
    for rows in (1, 3):
        with pytest.raises(
            ValueError, match=rf"tokens must have the 2 rows.*got {rows}.*new_cache"
        ):
            model(random_tokens(rows, 1), cache=cache)
    for other in (tiny_model("rope"), tiny_model("alibi", heads=2), copy.deepcopy(model)):
        with pytest.raises(ValueError, match=r"cache was created by another model.*new_cache\(\)"):
            other(tokens, cache=cache)
    with pytest.raises(ValueError, match="documents cannot be given with a cache"):
        model(tokens, documents=tokens, cache=cache)
    with pytest.raises(ValueError, match=r"context_length is set when.*new_cache\(context_length"):
        model(tokens, context_length=9, cache=cache)
    with pytest.raises(TypeError, match=r"cache must come from new_cache.*, got bool"):
        model(tokens, cache=True)
    assert cache.length == 5
    assert_same(model(tokens, cache=cache), model(tokens.repeat(1, 2))[:, 5:])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"room": 0}, ValueError, "room must be at least 1, got 0"),
        ({"room": 2.5}, TypeError, "room must be an integer, got 2.5"),
        ({"context_length": 0}, ValueError, "context_length must be at least 1, got 0"),
        ({"context_length": 8.0}, TypeError, "context_length must be an integer, got 8.0"),
        ({"context_length": torch.ones(2)}, TypeError, "context_length .* got torch.float32"),
        ({"context_length": torch.tensor([3, -1])}, ValueError, r"at least 1, got \[3, -1\]"),
        ({"context_length": torch.tensor(3)}, ValueError, r"a number or \[batch\].*got shape \(\)"),
    ],
)
def test_a_cache_of_wrong_sizes_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        tiny_model("rope-ntk").new_cache(**arguments)


@torch.no_grad()
def test_context_lengths_of_other_rows_are_refused():
    model = tiny_model("rope-ntk")
    cache = model.new_cache(context_length=torch.tensor([9, 9, 9]))
    with pytest.raises(ValueError, match=r"context_length .*\[2\], one per row, got shape \(3,\)"):
        model(random_tokens(2, 4), cache=cache)


def test_a_cache_tells_what_it_holds():
    model = GPT(tiny_config("rope"))
    cache = model.new_cache(context_length=9)
    with torch.no_grad():
        model(random_tokens(1, 4), cache=cache)
    assert repr(cache) == "KeyValueCache(length=4, context_length=9)"
