"""Configurations: what they derive, the way to JSON and back, and what they refuse."""

import json

import numpy as np
import pytest
from tiny_models import CASES, tiny_config

from scale_invariant_attention import schemes
from scale_invariant_attention.model import PRESETS, GPTConfig
from scale_invariant_attention.schemes import RoPE, ScaleInvariant


@pytest.mark.parametrize("case", CASES)
def test_to_json_and_back(case):
    config = tiny_config(case)
    again = GPTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.scheme == config.scheme


@pytest.mark.parametrize("case", CASES)
def test_slots_are_those_of_the_scheme_with_its_options(case):
    name, options = CASES[case]
    if "train_length" in schemes.options(name):
        options = {**options, "train_length": 12}
    assert tiny_config(case).scheme == schemes.get(name, **options)


def test_numbers_of_numpy_become_numbers_of_json():
    sizes = {"vocab_size": 50, "layers": 2, "width": 48, "heads": 3, "train_length": 12}
    config = GPTConfig(**{name: np.int64(size) for name, size in sizes.items()})
    assert json.loads(json.dumps(config.to_dict())) == GPTConfig(**sizes).to_dict()


def test_a_configuration_keeps_its_options_to_itself():
    options = {"tau": 2.0}
    config = GPTConfig(scheme_options=options)
    options["tau"] = 5.0
    assert config.scheme.distance == ScaleInvariant(tau=2.0)
    config.to_dict()["scheme_options"]["tau"] = 7.0
    assert config.scheme.distance == ScaleInvariant(tau=2.0)
    assert GPTConfig().scheme_options is not GPTConfig().scheme_options
    with pytest.raises(AttributeError):
        config.width = 5


def test_presets():
    assert set(PRESETS) == {"162m", "304m", "mini"}
    for name in PRESETS:
        assert GPTConfig.preset(name).scheme_name == "scale-invariant-p-rope"
        for scheme in schemes.names():
            assert GPTConfig.preset(name, scheme_name=scheme).scheme is not None
    paper = GPTConfig.preset("162m")
    assert (paper.layers, paper.width, paper.heads) == (12, 768, 6)
    assert (paper.vocab_size, paper.train_length) == (50_304, 4096)
    large = GPTConfig.preset(
        "304m", train_length=65_536, scheme_name="rope", scheme_options={"base": 5.0}
    )
    assert (large.layers, large.width, large.heads, large.train_length) == (16, 1024, 8, 65_536)
    assert large.scheme.rotary == RoPE(base=5.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"heads": 10**400}, ValueError, "and heads=an integer of 1329 bits"),
        (
            {"train_length": 10**400},
            ValueError,
            "train_length must be at most 9,007,199,254,740,992",
        ),
        ({"layers": 0}, ValueError, "layers must be at least 1, got 0"),
        ({"vocab_size": -5}, ValueError, "vocab_size must be at least 1, got -5"),
        ({"width": 48.0}, TypeError, "width must be an integer, got 48.0"),
        ({"heads": True}, TypeError, "heads must be an integer, got True"),
        ({"train_length": 0}, ValueError, "train_length must be at least 1, got 0"),
        ({"width": 50}, ValueError, "width must be a multiple of heads, got width=50 and heads=3"),
        (
            {"width": 45},
            ValueError,
            "width / heads = 45 / 3 does not suit the scheme: head_dim must be .*15",
        ),
        ({"qk_norm": 1}, TypeError, "qk_norm must be True or False, got 1"),
        ({"scheme_name": "ropee"}, ValueError, "no scheme 'ropee' .did you mean 'rope'"),
        ({"width": 9}, ValueError, "width / heads = 9 / 3 does not suit the scheme: .*head_dim"),
        (
            {"scheme_name": None, "scheme_options": {"tau": 1}},
            ValueError,
            "scheme_options must be empty without a scheme",
        ),
        ({"scheme_options": {"tau": np.float32(5)}}, TypeError, "what JSON can hold"),
        ({"scheme_options": [1]}, TypeError, r"scheme_options must be a dict, got \[1\]"),
        ({"scheme_options": {"taw": 1}}, TypeError, "no option 'taw' .did you mean 'tau'"),
        ({"scheme_options": {"tau": -1.0}}, ValueError, "tau must be greater than 0, got -1.0"),
        (
            {"scheme_options": {"train_length": 5}},
            ValueError,
            "train_length is a field of GPTConfig",
        ),
        (
            {"scheme_name": "yarn", "train_length": None},
            ValueError,
            "train_length must be given .*'yarn'",
        ),
        (
            {"scheme_name": "logn-rope", "train_length": None},
            ValueError,
            "train_length must be given",
        ),
        ({"with": 5}, TypeError, "GPTConfig has no field 'with' .did you mean 'width'"),
    ],
)
def test_wrong_fields_are_named(changes, error, message):
    good = tiny_config("scale-invariant-p-rope").to_dict()
    with pytest.raises(error, match=message):
        GPTConfig.from_dict({**good, **changes})


def test_an_odd_head_is_fine_where_nothing_rotates():
    assert tiny_config("alibi", width=45).head_dim == 15


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match=r"no preset '1b'; the presets are: 162m, 304m, mini"):
        GPTConfig.preset("1b")
    with pytest.raises(TypeError, match="no field 'tau'"):
        GPTConfig.preset("mini", tau=3.0)
