"""A GPT with a memory: attention inside segments, memory of constant size, and what it refuses."""

import copy

import pytest
import torch
from tiny_models import TRAINED, assert_same, random_tokens, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from scale_invariant_attention import schemes
from scale_invariant_attention.analysis import gpt_scores
from scale_invariant_attention.model import GPT, ContextParallel
from scale_invariant_attention.model._segments import segment_layout
from scale_invariant_attention.model.inputs import token_layout
from scale_invariant_attention.schemes import CompressiveMemory, RoPE, Scheme

BOTH = pytest.mark.parametrize("case", ["infini-rope", "delta rule"])
# Of both, by the training length and by an option.
SEGMENT = {"infini-rope": TRAINED // 2, "delta rule": 4}


def with_gates(model, gate):
    for block in model.blocks:
        torch.nn.init.constant_(block.attention.scheme.memory.gate, gate)
    return model


def of_segments(length, gate=0.0):
    """A model of one layer whose weights are those of "rope"."""
    rope = tiny_model("rope", layers=1)
    model = GPT(
        rope.config, scheme=Scheme(RoPE(), memory=CompressiveMemory(length)), backend="reference"
    )
    model.double().load_state_dict(rope.state_dict(), strict=False)
    return with_gates(model, gate), rope


def test_with_closed_gates_it_is_ordinary_attention_in_each_segment():
    model, rope = of_segments(6, gate=-1e4)
    tokens = random_tokens(2, 20)
    expected = [rope(part) for part in tokens.split(6, dim=1)]
    assert_same(model(tokens), torch.cat(expected, 1))
    model, rope = of_segments(20, gate=-1e4)
    assert_same(model(tokens), rope(tokens))


def test_with_open_gates_the_last_token_sees_earlier_segments_alone():
    """Those of its own segment it does not see, itself excepted, through the residual stream."""
    model, _ = of_segments(6, gate=1e4)
    tokens = torch.randperm(20)[None]
    logits = model(tokens)[0, -1]
    (grad,) = torch.autograd.grad(logits.square().sum(), model.embedding.weight)
    seen = grad[tokens[0]].abs().amax(1) > 0
    assert seen.tolist() == [True] * 18 + [False, True]


def test_what_is_retrieved_knows_no_positions():
    """Reordered inside an earlier segment, the tokens leave the same memory."""
    model, _ = of_segments(6, gate=1e4)
    tokens = random_tokens(1, 12)
    reordered = torch.cat([tokens[:, :6].flip(1), tokens[:, 6:]], 1)
    assert_same(model(reordered)[:, 6:], model(tokens)[:, 6:])
    model, _ = of_segments(6, gate=-1e4)
    swapped = torch.cat([tokens[:, [1, 0]], tokens[:, 2:]], 1)
    assert not torch.allclose(model(swapped)[:, 2:6], model(tokens)[:, 2:6])


@torch.no_grad()
@BOTH
def test_a_prompt_of_any_length_is_continued_as_without_a_cache(case):
    model, tokens = tiny_model(case), random_tokens(2, 3 * SEGMENT[case] + 1)
    expected = model(tokens)
    for prompt in range(1, tokens.shape[1] + 1):
        cache = model.new_cache()
        found = [model(tokens[:, :prompt], cache=cache)]
        for at in range(prompt, tokens.shape[1]):
            found.append(model(tokens[:, at : at + 1], cache=cache))
        assert_same(torch.cat(found, 1), expected)


def bytes_in(value, seen=None):
    """Memory of all tensors that an object holds, each storage once and whole."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            bytes_in(each, seen)
    elif hasattr(value, "__dict__"):
        bytes_in({name: it for name, it in vars(value).items() if name != "_model"}, seen)
    return sum(seen.values())


@torch.no_grad()
@BOTH
def test_a_cache_stays_as_small_however_long_the_text(case):
    model, length = tiny_model(case, torch.float32), SEGMENT[case]
    cache = model.new_cache()
    sizes = []
    for number in (1, *[length] * 9, 50 * length, 1, length - 2):
        model(random_tokens(1, number), cache=cache)
        sizes.append((cache.length % length, bytes_in(cache)))
    assert len(set(sizes)) == 3
    per_token = 2 * 2 * 3 * 16 * 4  # keys and values of two layers with three heads, in float32
    memories = 2 * 2 * 3 * 16 * 17 * 4  # two, of as many heads, with the normaliser
    assert dict(sizes) == {it: memories + it * per_token for it in range(3)}


@torch.no_grad()
@BOTH
def test_padding_adds_positions_and_masks_to_a_cache_and_nothing_else(case):
    model, length = tiny_model(case, torch.float32), SEGMENT[case]
    cache = model.new_cache(room=1)
    mask = torch.ones(2, 3 * length, dtype=torch.bool)
    mask[1, :2] = False
    model(random_tokens(2, 3 * length), token_mask=mask, cache=cache)
    noted = bytes_in(cache._positions) + bytes_in(cache._token_mask)
    before = bytes_in(cache) - noted
    for _ in range(20 * length):
        model(random_tokens(2, 1), cache=cache)
    noted = bytes_in(cache._positions) + bytes_in(cache._token_mask)
    assert bytes_in(cache) - noted == before
    assert noted <= 2 * 9 * 2 * cache.length


@torch.no_grad()
@BOTH
def test_copies_of_a_cache_go_their_own_ways(case):
    model, tokens = tiny_model(case), random_tokens(2, 3 * SEGMENT[case])
    cache = model.new_cache()
    half = SEGMENT[case] + 1
    model(tokens[:1, :half], cache=cache)
    other = copy.deepcopy(cache)
    found = [model(tokens[:1, half:], cache=cache), model(tokens[1:, half:], cache=other)]
    both = torch.cat([tokens[:1, :half].expand(2, -1), tokens[:, half:]], 1)
    assert_same(torch.cat(found), model(both)[:, half:])


@torch.no_grad()
def test_a_cache_keeps_its_rows_and_its_dtype():
    model = tiny_model("infini-rope", torch.float32)
    cache = model.new_cache()
    model(random_tokens(2, 5), cache=cache)
    with pytest.raises(ValueError, match="tokens must have the 2 rows of the cache, got 3"):
        model(random_tokens(3, 1), cache=cache)
    with pytest.raises(TypeError, match=r"the cache holds keys in torch.float32, but the new"):
        model.bfloat16()(random_tokens(2, 1), cache=cache)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="a cache keeps no gradients"):
        model.float()(random_tokens(2, 1), cache=cache)
    assert cache.length == 5


class Largest(TorchDispatchMode):
    """The largest number of elements of any tensor that is computed."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        out = function(*arguments, **(named or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@torch.no_grad()
@pytest.mark.parametrize("packed", [False, True])
@BOTH
def test_memory_is_linear_in_the_length(case, packed):
    """Even on the backend that holds all logits, of which there are as many as tokens by segment."""
    model = tiny_model(case, torch.float32, backend="tiled" if packed else "reference")
    sizes = []
    for length in (16 * TRAINED, 64 * TRAINED):
        documents = torch.arange(length) // 50 if packed else None
        with Largest() as largest:
            model.hidden_states(random_tokens(1, length), documents=documents)
        sizes.append(largest.elements)
    assert sizes[1] <= 4 * sizes[0]


def test_documents_take_at_most_twice_their_tokens():
    for lengths in ([1] * 40, [5] * 8, [4, 36], [40], [9, 3, 28]):
        documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        layout = token_layout(torch.zeros(1, 40), None, documents, None, None)
        segments = segment_layout(layout, 4).memory
        assert segments.count * segments.length <= 80
        taken = segments.slots[segments.slots < 80]
        assert len(taken) == len(set(taken.tolist())) == sum(it for it in lengths if it > 4)
        assert int(segments.begins.sum()) == sum(it > 4 for it in lengths)


def test_context_parallel_is_refused():
    with pytest.raises(
        NotImplementedError, match="context_parallel must be None for schemes with a memory"
    ):
        tiny_model("infini-rope")(random_tokens(1, 8), context_parallel=ContextParallel())


def test_attention_analysis_is_refused():
    model = tiny_model("infini-p-rope")
    with pytest.raises(ValueError, match="model must have a scheme without a memory"):
        gpt_scores(model, random_tokens(1, 8), print)


@BOTH
def test_a_few_steps_lower_the_loss(case):
    torch.manual_seed(0)
    model = GPT(tiny_model(case).config)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens = random_tokens(8, 2 * TRAINED)
    losses = []
    for _ in range(20):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(it.attention.scheme.memory.gate.any() for it in model.blocks)


def test_the_named_schemes_are_those_of_the_paper_with_a_memory():
    for name in ("rope", "p-rope"):
        plain = schemes.get(name)
        infini = schemes.get(f"infini-{name}", segment_length=64, rule="delta")
        assert infini == Scheme(plain.rotary, memory=CompressiveMemory(64, "delta"))
