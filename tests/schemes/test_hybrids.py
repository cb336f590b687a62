"""Hybrids: the published patterns and temperatures, written out, and options that fit small models."""

import math

import pytest
import torch

from scale_invariant_attention import schemes
from scale_invariant_attention.schemes import (
    LayeredScheme,
    Llama4Temperature,
    RoPE,
    ScaleInvariant,
    Scheme,
    SWANTemperature,
    TokenPositions,
    TruncatedRoPE,
    named,
)

LOCAL = {"train_length", "window", "local_layers", "local_base"}
SPREAD = Scheme(TruncatedRoPE(1024.0, 0.25), distance=ScaleInvariant(1.0, 30.0))
# At a training length of 256: the pattern of the layers, and the options besides those of local layers.
EXPECTED = {
    "llama4": (
        [Scheme(RoPE(), window=64)] * 3 + [Scheme(query_scale=Llama4Temperature(64, 0.1))],
        {"floor_scale", "strength"},
    ),
    "swan": (
        [Scheme(query_scale=SWANTemperature(256))] + [Scheme(RoPE(), window=64)] * 3,
        {"offset"},
    ),
    "scale-invariant-global": (
        [Scheme(RoPE(), window=64)] * 3 + [SPREAD],
        {"base", "rotating", "tau", "highest_tau", "learn_tau"},
    ),
}
OTHERS = {
    "train_length": 512,
    "window": 9,
    "local_layers": 2,
    "local_base": 77.0,
    "floor_scale": 9,
    "strength": 0.5,
    "offset": 9.0,
    "base": 77.0,
    "rotating": 0.5,
    "tau": 3.0,
    "highest_tau": 77.0,
    "learn_tau": True,
}


def factors_of(scale, positions):
    tokens = TokenPositions(torch.tensor(positions), context_length=10**6)
    return scale.build(heads=3)(tokens)


def test_the_group_holds_the_hybrids():
    assert [row.name for row in named.HYBRIDS] == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_gives_the_published_pattern(name):
    pattern, own = EXPECTED[name]
    assert schemes.get(name, train_length=256) == LayeredScheme(pattern)
    assert set(schemes.options(name)) == LOCAL | own
    assert [each.window for each in schemes.get(name, window=9).pattern].count(9) == 3
    # Without a training length, as at the paper's.
    assert schemes.get(name) == schemes.get(name, train_length=4096)


@pytest.mark.parametrize("name", EXPECTED)
def test_options_change_the_layers_that_they_are_for(name):
    usual = schemes.get(name, train_length=256)
    for option in schemes.options(name):
        given = {"train_length": 256, option: OTHERS[option]}
        other = schemes.get(name, **given)
        assert other != usual
        local = [each for each in other.pattern if each.window is not None]
        far = [each for each in other.pattern if each.window is None]
        assert len(local) == given.get("local_layers", 3) and len(far) == 1
        if option in EXPECTED[name][1]:
            assert local == [each for each in usual.pattern if each.window is not None]
        if option == "local_base":
            assert {each.rotary for each in local} == {RoPE(77.0)}


@pytest.mark.parametrize("name", EXPECTED)
def test_bad_values_are_refused_at_once(name):
    for option in schemes.options(name):
        for wrong in ("much", float("nan")):
            with pytest.raises((TypeError, ValueError), match=f"{option} must"):
                schemes.get(name, **{option: wrong})
    with pytest.raises(ValueError, match="local_layers must be at least 1, got 0"):
        schemes.get(name, local_layers=0)


def test_llama_4_sharpens_in_steps():
    """Against transformers' code of Llama 4, in its own constants."""
    positions = [0, 8190, 8191, 8192, 16383, 100_000]
    expected = [
        math.log(math.floor((position + 1.0) / 8192) + 1.0) * 0.1 + 1.0 for position in positions
    ]
    found = factors_of(Llama4Temperature(), positions)
    assert found.shape == (1, 6) and found.dtype == torch.float64
    torch.testing.assert_close(found[0], torch.tensor(expected).double(), rtol=1e-6, atol=0)
    assert found[0, :2].tolist() == [1.0, 1.0]


def test_the_temperature_is_that_of_transformers_llama_4():
    modeling = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    from transformers import Llama4TextConfig

    config = Llama4TextConfig(
        **{"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8},
        **{"num_hidden_layers": 4, "floor_scale": 5, "attn_scale": 0.3},
        attn_implementation="sdpa",
    )
    # Layers without rotation have a 0.
    assert config.no_rope_layers == [1, 1, 1, 0]
    attention = modeling.Llama4TextAttention(config, layer_idx=3).double()
    seen = []
    config._attn_implementation = "temperature"
    modeling.ALL_ATTENTION_FUNCTIONS.register(
        "temperature",
        lambda module, query, key, value, *_, **__: (seen.append(query), (value, None))[1],
    )
    hidden = torch.randn(1, 23, 8, dtype=torch.float64)
    attention(hidden, position_embeddings=None, attention_mask=None)
    plain = attention.q_proj(hidden)[0]
    ratio = (seen[0][0, 0] / plain).mean(1)
    found = factors_of(Llama4Temperature(5, 0.3), range(23))[0]
    torch.testing.assert_close(ratio, found, rtol=1e-6, atol=0)


def test_swan_sharpens_with_the_logarithm():
    found = factors_of(SWANTemperature(16.0), [[0, 240, 16**3 - 16], [5, 5, 5]])
    assert found.shape == (2, 1, 3)
    assert found[0, 0].tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert found[1, 0].tolist() == pytest.approx([math.log(21, 16)] * 3)


@pytest.mark.parametrize("wrong", [1.0, 0.5])
def test_an_offset_without_a_logarithm_is_refused(wrong):
    with pytest.raises(ValueError, match="offset must be above 1"):
        SWANTemperature(wrong)


@pytest.mark.parametrize("scale", [Llama4Temperature(4), SWANTemperature(16.0)])
def test_temperatures_do_not_depend_on_the_context(scale):
    assert not scale.depends_on_context
    assert not Scheme(query_scale=scale).depends_on_context
    # Before the start of a document, as at it.
    assert factors_of(scale, [-7]).tolist() == factors_of(scale, [0]).tolist() == [[1.0]]
