"""A scheme per layer, and windows: what layers share, what windows hide, what caches keep."""

import copy

import pytest
import torch
from tiny_models import VOCABULARY, assert_same, plain_logits, random_tokens, tiny_model

from scale_invariant_attention import schemes
from scale_invariant_attention.model import GPT, GPTConfig, gpt
from scale_invariant_attention.schemes import LayeredScheme, RoPE, ScaleInvariant, Scheme

LENGTH = 40
LOCAL, NEAR = Scheme(RoPE(50.0), window=4), Scheme(distance=ScaleInvariant(), window=6)


def built(scheme, layers=4, dtype=torch.float64, backend="reference"):
    """A model with a scheme of its own, and weights that are not zero."""
    torch.manual_seed(0)
    config = GPTConfig(VOCABULARY, layers, width=16, heads=2, scheme_name=None)
    model = GPT(config, scheme=scheme, backend=backend)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.to(dtype)


def test_layers_have_the_schemes_of_the_pattern_in_turn():
    config = GPTConfig(
        **{"vocab_size": 9, "layers": 5, "width": 16, "heads": 2},
        scheme_name="rope,rope,nope",
        scheme_options={"rope.base": 50.0, "rope.window": 4},
    )
    model = GPT(config)
    found = [block.attention.scheme.scheme for block in model.blocks]
    assert found == [LOCAL, LOCAL, Scheme(), LOCAL, LOCAL]
    assert model.scheme == LayeredScheme([LOCAL, LOCAL, Scheme()])


def test_layers_with_equal_schemes_share_rotation_and_layout(monkeypatch):
    rotated, passes = [], []

    def rotation(rotary, *others):
        rotated.append(rotary)
        return schemes.rotation(rotary, *others)

    monkeypatch.setattr(gpt, "rotation", rotation)
    # Equal, not the same object.
    again = Scheme(RoPE(50.0), window=4)
    model = built(LayeredScheme([LOCAL, Scheme(RoPE(500.0)), again, Scheme()]))
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, given: passes.append(given[1]))
    model(random_tokens(1, 8))
    assert rotated == [RoPE(50.0), RoPE(500.0)]
    assert [passes.index(it) for it in passes] == [0, 1, 0, 3]
    assert [it.layout.visibility.window for it in passes] == [4, None, 4, None]
    # Tables need not be longer than the window.
    assert [it.layout.span for it in passes] == [4, 8, 4, 8]


def test_one_scheme_is_a_pattern_of_itself():
    one, tokens = Scheme(RoPE(), distance=ScaleInvariant()), random_tokens(2, LENGTH)
    alone, repeated = built(one), built(LayeredScheme([one, one, one]))
    assert torch.equal(alone(tokens), repeated(tokens))


@pytest.mark.parametrize("window", [LENGTH, LENGTH + 1, 10**12])
def test_a_window_as_long_as_the_text_hides_nothing(window):
    tokens = random_tokens(2, LENGTH)
    whole, windowed = (built(Scheme(RoPE(), window=it)) for it in (None, window))
    assert torch.equal(whole(tokens), windowed(tokens))


@torch.no_grad()
def one_by_one(model, tokens, **settings):
    cache = model.new_cache(**settings)
    return torch.cat([model(token, cache=cache) for token in tokens.split(1, dim=1)], 1)


@pytest.mark.parametrize("backend", ["reference", "tiled", "cpu"])
@pytest.mark.parametrize("run", [GPT.__call__, one_by_one], ids=["uncached", "cached"])
def test_what_is_beyond_the_windows_may_be_nan(run, backend):
    model = built(LayeredScheme([LOCAL, NEAR]), layers=2, dtype=torch.float32, backend=backend)
    reach = (4 - 1) + (6 - 1)
    tokens = torch.randperm(VOCABULARY)[None, :LENGTH]
    with torch.no_grad():
        before = run(model, tokens)
        model.embedding.weight[tokens[0, 0]] = torch.nan
        after = run(model, tokens)
    assert before.isfinite().all()
    assert after[:, : reach + 1].isnan().all()
    assert torch.equal(after[:, reach + 1 :], before[:, reach + 1 :])


def lengths_of(cache):
    return [0 if keys.memory is None else keys.memory.shape[2] for keys in cache._keys]


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_keeps_little_more_than_the_windows(masked):
    """A long prompt is forgotten too, and all memory that layers without a window keep is theirs."""
    model = built(LayeredScheme([LOCAL, Scheme(), NEAR, Scheme()]))
    tokens, cache = random_tokens(1, 150), model.new_cache(room=64)
    given = {"token_mask": torch.ones(1, 100, dtype=torch.bool)} if masked else {}
    model(tokens[:, :100], cache=cache, **given)
    assert lengths_of(cache) == [100] * 4
    memory = set()
    for step in range(100, 150):
        found = model(tokens[:, step : step + 1], cache=cache)
        assert lengths_of(cache)[0] <= 8 and lengths_of(cache)[2] <= 12
        memory.add(cache._keys[0].memory.data_ptr())
    assert lengths_of(cache)[1] == lengths_of(cache)[3] == 200
    # Copied once per window or so.
    assert len(memory) <= 50 // 4 + 1
    assert_same(found, model(tokens)[:, -1:])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", ["swan", "pattern of windows", "pattern by context"])
def test_padding_anywhere_and_in_any_chunks(case, seed):
    """A window counts positions, and padding has none."""
    model, generator = tiny_model(case), torch.Generator().manual_seed(seed)
    tokens = random_tokens(3, LENGTH, seed=seed)
    mask = torch.rand(3, LENGTH, generator=generator) < torch.tensor([[0.4], [0.7], [1.0]])
    mask[:, -1] = True
    cache = model.new_cache(context_length=LENGTH, room=1)
    found, start = [], 0
    with torch.no_grad():
        while start < LENGTH:
            size = int(torch.randint(1, 9, (), generator=generator))
            part = slice(start, start + size)
            found.append(model(tokens[:, part], token_mask=mask[:, part], cache=cache))
            start += size
    found = torch.cat(found, 1)
    for row in range(3):
        text = tokens[row][mask[row]]
        expected = plain_logits(model, text, context_length=LENGTH)
        assert_same(found[row][mask[row]], expected)


@torch.no_grad()
def test_positions_may_not_return_to_what_is_forgotten():
    model, tokens = built(LOCAL), random_tokens(2, 9)
    positions = torch.arange(9) + torch.tensor([[0], [7]])
    cache = model.new_cache()
    model(tokens[:, :3], positions=positions[:, :3], cache=cache)
    # While nothing is forgotten, they may.
    earlier = copy.deepcopy(cache)
    model(tokens[:, 3:4], positions=torch.tensor([[1], [8]]), cache=earlier)
    model(tokens[:, 3:6], positions=positions[:, 3:6], cache=cache)
    again = torch.tensor([[6], [12]])
    with pytest.raises(ValueError, match=r"positions must be above .* got \[6, 12\].*new cache"):
        model(tokens[:, 6:7], positions=again, cache=cache)
    assert cache.length == 6
    found = model(tokens[:, 6:], positions=positions[:, 6:], cache=cache)
    assert_same(found, model(tokens, positions=positions)[:, 6:])


def test_a_scheme_of_ones_own_per_layer_is_saved_and_loaded(tmp_path):
    pattern = LayeredScheme([LOCAL, Scheme(distance=ScaleInvariant(learn_tau=True))])
    model, tokens = built(pattern), random_tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    again = GPT.from_pretrained(tmp_path, scheme=pattern, backend="reference")
    assert torch.equal(again(tokens), model(tokens))
    with pytest.raises(ValueError, match=r"weights do not fit.*log_tau"):
        GPT.from_pretrained(tmp_path, scheme=LayeredScheme([LOCAL, Scheme()]))


def test_a_pattern_beyond_the_layers_is_refused():
    with pytest.raises(ValueError, match=r"layers must be at least 3, .* got 2"):
        GPTConfig(layers=2, scheme_name="rope,rope,nope")
    with pytest.raises(ValueError, match="layers must be at least 2"):
        built(LayeredScheme([LOCAL, NEAR]), layers=1)
