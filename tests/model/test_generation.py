"""Writing on: equal to the uncached model step by step, row by row, lazily and without side effects."""

import gc

import pytest
import torch
from tiny_models import BY_CONTEXT, KINDS, TRAINED, VOCABULARY, random_tokens, tiny_model

from scale_invariant_attention.model import left_padded
from scale_invariant_attention.model._generation import Sampler

NEW = TRAINED


@torch.no_grad()
def written_without_cache(model, prompt, new, sampler=None):
    """Continuation of a prompt ``[L]``, recomputing everything for every token."""
    sampler, text = sampler or Sampler(), prompt[None]
    for _ in range(new):
        logits = model(text, context_length=len(prompt) + new)
        text = torch.cat([text, sampler(logits[:, -1])[:, None]], 1)
    return text[0]


@pytest.mark.parametrize("case", KINDS)
def test_greedy_takes_the_likeliest_token_of_the_uncached_model(case):
    model = tiny_model(case)
    prompts = random_tokens(2, 5)
    found = model.generate(prompts, NEW)
    expected = [written_without_cache(model, prompt, NEW) for prompt in prompts]
    assert torch.equal(found, torch.stack(expected))
    assert len(set(found[0, 5:].tolist())) > 2  # a model that repeats itself would prove little


@pytest.mark.parametrize("case", KINDS)
def test_prompts_padded_on_the_left_are_continued_as_each_alone(case):
    model = tiny_model(case)
    prompts = [random_tokens(length, seed=length).tolist() for length in (3, 1, TRAINED + 2)]
    tokens, mask = left_padded(prompts, pad_token=VOCABULARY - 1)
    found = model.generate(tokens, 5, token_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = model.generate(torch.tensor([prompt]), 5)[0]
        assert torch.equal(found[row, -len(alone) :], alone)


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "logn-rope", "yarn"])
def test_samples_are_those_of_the_uncached_model(case):
    model = tiny_model(case)
    (prompt,) = random_tokens(1, 5)
    settings = {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "seed": 3}
    found = model.generate(prompt[None], NEW, **settings)[0]
    assert torch.equal(found, written_without_cache(model, prompt, NEW, Sampler(**settings)))
    assert torch.equal(found, model.generate(prompt[None], NEW, **settings)[0])
    settings["seed"] = 4
    assert not torch.equal(found, model.generate(prompt[None], NEW, **settings)[0])


def test_samples_leave_torchs_generator_alone_only_with_a_seed():
    model = tiny_model("nope")
    prompt = random_tokens(1, 3)
    state = torch.get_rng_state()
    model.generate(prompt, 3)
    model.generate(prompt, 3, temperature=1.0, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    model.generate(prompt, 3, temperature=1.0)
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("case", ["scale-invariant-p-rope", "alibi", "rope-ntk"])
def test_far_beyond_the_training_length_in_float32(case):
    model = tiny_model(case, torch.float32)
    prompt = random_tokens(1, 4)
    new = 8 * TRAINED
    text = model.generate(prompt, new)
    assert text.shape == (1, 4 + new)
    with torch.no_grad():
        logits = model(text[:, :-1], context_length=4 + new)[:, 3:]
    best = logits.max(-1).values
    chosen = logits.gather(-1, text[:, 4:, None]).squeeze(-1)
    # The most likely token, or one that differs from it only by rounding.
    assert (best - chosen).max() < 1e-3


@pytest.mark.parametrize("case", BY_CONTEXT)
def test_the_context_length_is_that_of_the_whole_text(case):
    """So what is written depends on how much is going to be written."""
    model = tiny_model(case)
    seen = []
    new_cache = model.new_cache
    model.new_cache = lambda **given: seen.append(given) or new_cache(**given)
    tokens, mask = left_padded([[1, 2, 3], [4]])
    model.generate(tokens, 5, token_mask=mask)
    assert seen[0]["context_length"].tolist() == [8, 6]


def test_a_row_ends_with_its_stop_token_and_repeats_it():
    model = tiny_model("scale-invariant-p-rope")
    prompts = random_tokens(3, 5)
    free = model.generate(prompts, NEW)[:, 5:]
    # The third token of the first row and the sixth of the second, wherever they stand first.
    stops = [int(free[0, 2]), int(free[1, 5])]
    found = model.generate(prompts, NEW, stop_tokens=stops)[:, 5:]
    ends = []
    for row in range(3):
        at = [i for i, token in enumerate(free[row].tolist()) if token in stops]
        ends.append(at[0] if at else NEW - 1)
    length = max(ends) + 1
    assert found.shape == (3, length) and len(set(ends)) > 1
    for row, end in enumerate(ends):
        expected = free[row, :length].clone()
        expected[end + 1 :] = expected[end]
        assert torch.equal(found[row], expected)


def test_stop_at_the_first_token():
    model = tiny_model("rope")
    prompts = random_tokens(2, 5)
    first = model.generate(prompts, 1)[:, -1].tolist()
    assert model.generate(prompts, NEW, stop_tokens=first).shape == (2, 6)
    one = model.generate(prompts, NEW, stop_tokens=first[:1])
    assert one.shape[1] > 6 and (one[0, 5:] == first[0]).all()
    # A stop token of the prompt ends nothing.
    free = model.generate(prompts, NEW)
    unused = next(t for t in prompts[0].tolist() if t not in free[:, 5:])
    assert torch.equal(model.generate(prompts, NEW, stop_tokens=[unused]), free)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 5}])
@pytest.mark.parametrize("padded", [False, True])
def test_streaming_yields_what_generate_returns(settings, padded):
    model = tiny_model("logn-p-rope")
    prompts = random_tokens(3, 5)
    mask = torch.arange(5) >= torch.tensor([[0], [2], [4]]) if padded else None
    whole = model.generate(prompts, NEW, token_mask=mask, stop_tokens=[3, 4], **settings)
    columns = model.stream(prompts, NEW, token_mask=mask, stop_tokens=[3, 4], **settings)
    assert torch.equal(whole[:, 5:], torch.stack(list(columns), 1))


def test_a_stream_makes_one_step_at_a_time():
    model = tiny_model("rope")
    lengths = []
    model.blocks[0].register_forward_hook(lambda block, args, out: lengths.append(out.shape[1]))
    stream = model.stream(random_tokens(2, 5), 4)
    assert lengths == []
    for step in range(1, 5):
        next(stream)
        assert lengths == [5] + [1] * (step - 1)
    with pytest.raises(StopIteration):
        next(stream)
    assert len(lengths) == 4


def test_a_yielded_column_may_be_changed():
    model = tiny_model("rope")
    prompts = random_tokens(2, 5)
    expected = model.generate(prompts, 6, stop_tokens=[1])
    kept = prompts.clone()
    found = []
    for column in model.stream(prompts, 6, stop_tokens=[1]):
        found.append(column.clone())
        column.fill_(1)
    assert torch.equal(torch.stack(found, 1), expected[:, 5:])
    assert torch.equal(prompts, kept)


def test_nothing_to_write():
    model = tiny_model("yarn")
    prompts = random_tokens(2, 5)
    assert torch.equal(model.generate(prompts, 0), prompts)
    assert list(model.stream(prompts, 0, stop_tokens=[1])) == []


@pytest.mark.parametrize("training", [True, False])
def test_modes_are_left_as_they_were(training):
    model = tiny_model("rope").train(training)
    prompts = random_tokens(1, 3)
    assert not model.generate(prompts, 2).requires_grad
    assert torch.is_grad_enabled() and model.training == training
    stream = model.stream(prompts, 5)
    next(stream)
    # Between two tokens the consumer may train.
    assert torch.is_grad_enabled()
    model(prompts, targets=prompts).backward()
    next(stream)
    assert torch.is_grad_enabled()
    del stream
    gc.collect()
    assert torch.is_grad_enabled() and model.training == training
    with torch.no_grad():
        half = model.stream(prompts, 5)
        next(half)
        assert not torch.is_grad_enabled()
    next(half)
    assert torch.is_grad_enabled()
    half.close()
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        assert model.generate(prompts, 3).shape == (1, 6)


def test_a_stream_that_fails_leaves_gradients_on(monkeypatch):
    model = tiny_model("rope")
    stream = model.stream(random_tokens(1, 3), 5)
    next(stream)
    monkeypatch.setattr(model.blocks[1], "forward", lambda x, call: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert torch.is_grad_enabled()


def test_a_large_limit_takes_no_memory_before_it_is_used():
    model = tiny_model("scale-invariant-p-rope", torch.float32)
    stream = model.stream(random_tokens(1, 3), 10**12)
    expected = model.generate(random_tokens(1, 3), 3)[0, 3:]
    assert [int(next(stream)) for _ in range(3)] == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_prompts_of_any_integer_dtype(dtype):
    model = tiny_model("rope")
    prompts = random_tokens(2, 5)
    found = model.generate(prompts.to(dtype), 4, stop_tokens=[7])
    assert found.dtype == torch.int64
    assert torch.equal(found, model.generate(prompts, 4, stop_tokens=[7]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": [[1, 2]]}, TypeError, "tokens must be an integer tensor, got list"),
        (
            {"tokens": torch.ones(2, 5)},
            TypeError,
            "tokens must be an integer tensor, got .*float32",
        ),
        ({"tokens": torch.ones(5).long()}, ValueError, r"tokens must be \[batch, length\]"),
        ({"tokens": torch.ones(2, 0).long()}, ValueError, r"at least one token.*\(2, 0\)"),
        ({"tokens": torch.full((2, 5), 50)}, ValueError, "tokens must be in 0 .. 49, got 50"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, got -1"),
        ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens must be an integer, got 2.0"),
        ({"temperature": -1.0}, ValueError, "temperature must be at least 0, got -1.0"),
        ({"top_p": 2.0}, ValueError, "top_p must be above 0"),
        ({"stop_tokens": [1.5]}, TypeError, "stop_tokens must be an integer, got 1.5"),
        ({"stop_tokens": 7}, TypeError, "stop_tokens must be a sequence .*got 7"),
        ({"token_mask": torch.ones(2, 5)}, TypeError, "token_mask must be a bool tensor.*float32"),
        ({"token_mask": torch.ones(2, 4).bool()}, ValueError, r"token_mask must be \[2, 5\]"),
        (
            {"token_mask": torch.tensor([[True] * 4 + [False], [True] * 5])},
            ValueError,
            "token_mask may be False only on the left.*left_padded",
        ),
        (
            {"token_mask": torch.tensor([[True, False, True, True, True], [True] * 5])},
            ValueError,
            "token_mask may be False only on the left.*left_padded",
        ),
        ({"token_mask": torch.zeros(2, 5).bool()}, ValueError, "True at its end.*left_padded"),
    ],
)
@pytest.mark.parametrize("new", [0, 2])
def test_wrong_arguments_are_named_at_once(arguments, error, message, new):
    model = tiny_model("rope")
    given = {"tokens": random_tokens(2, 5), "max_new_tokens": new} | arguments
    with pytest.raises(error, match=message):
        model.stream(**given)
    with pytest.raises(error, match=message):
        model.generate(**given)


def test_left_padded():
    tokens, mask = left_padded([[5], (6, 7, 8), range(2)], pad_token=9)
    assert tokens.tolist() == [[9, 9, 5], [6, 7, 8], [9, 0, 1]]
    assert mask.tolist() == [[False, False, True], [True] * 3, [False, True, True]]
    assert tokens.dtype == torch.int64 and mask.dtype == torch.bool
    for wrong in ([], [[]], [[1], []]):
        with pytest.raises(ValueError, match="prompts must contain at least one prompt, and each"):
            left_padded(wrong)
