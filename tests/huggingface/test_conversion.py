"""Conversion changes rotary and attention alone, is saved with the model, and can be undone."""

import copy
import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from hugging_face_models import FAMILIES, converted, some_tokens, tiny
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from scale_invariant_attention import huggingface, schemes
from scale_invariant_attention.huggingface.settings import KEY
from scale_invariant_attention.schemes import (
    NTK,
    ALiBi,
    LogN,
    ProportionalRoPE,
    RoPE,
    ScaleInvariant,
    Scheme,
    TruncatedRoPE,
    YaRN,
    YaRNTemperature,
)

LENGTH = 20


def logits(model, ids=None):
    with torch.no_grad():
        return model(some_tokens(2, LENGTH) if ids is None else ids).logits


def saved_and_loaded(model, folder, **named):
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, **named)


def frequencies(model):
    return model.model.rotary_emb.inv_freq.double()


@pytest.mark.parametrize("family", FAMILIES)
def test_converting_back_restores_the_original_exactly(family):
    model = tiny(family)
    before, config = logits(model), model.config.to_dict()
    weights = copy.deepcopy(model.state_dict())
    for scheme in ("scale-invariant-p-rope", "logn-rope", "nope"):
        huggingface.convert(model, scheme)
        assert not torch.equal(logits(model), before)
    huggingface.convert(model, "rope")
    assert torch.equal(logits(model), before)
    assert model.config.to_dict() == config
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_that_share_a_config_are_converted_separately(family):
    first = tiny(family)
    second = type(first)(first.config).eval()
    second.load_state_dict(first.state_dict())
    before = logits(first)
    huggingface.convert(first)
    after = logits(first)
    assert torch.equal(logits(second), before) and not torch.equal(after, before)
    huggingface.convert(second, "alibi")
    assert torch.equal(logits(first), after)
    third = type(first)(first.config).eval()
    third.load_state_dict(first.state_dict())
    assert torch.equal(logits(huggingface.convert(third, "rope")), before)
    assert torch.equal(logits(first), after)
    assert all(
        module.config is first.config for module in first.modules() if hasattr(module, "config")
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_survives_saving_and_loading_twice(family, tmp_path):
    model = converted(family, tau=3.0)
    loaded = saved_and_loaded(model, tmp_path / "once")
    # Saved again without a call in between, as after merging an adapter.
    again = saved_and_loaded(loaded, tmp_path / "twice")
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(logits(huggingface.convert(again, "rope")), logits(tiny(family)))


def test_learned_parameters_are_saved(tmp_path):
    for scheme, options in (("logn-p-rope", {}), ("scale-invariant-p-rope", {"learn_tau": True})):
        model = converted(scheme=scheme, **options)
        learned = {n: p for n, p in model.named_parameters() if "position_scheme" in n}
        assert len(learned) == 2 and all(p.shape == (4,) for p in learned.values())
        with torch.no_grad():
            for parameter in learned.values():
                parameter.mul_(1 + torch.rand(4))
        loaded = saved_and_loaded(model, tmp_path / scheme)
        for name, parameter in learned.items():
            assert torch.equal(loaded.get_parameter(name), parameter)
        assert torch.equal(logits(loaded), logits(model))


def test_learned_parameters_missing_from_a_checkpoint_are_initialised(tmp_path):
    tiny().save_pretrained(tmp_path)
    for scheme, options in (("logn-p-rope", {}), ("scale-invariant-p-rope", {"learn_tau": True})):
        model = converted(scheme=scheme, **options)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, config=model.config)
        assert torch.equal(logits(loaded), logits(model))


def test_calibration_is_saved(tmp_path):
    calibration = huggingface.Calibration(0.5 + torch.rand(2, 4), torch.randn(2, 4))
    model = converted(calibration=calibration)
    assert torch.equal(logits(saved_and_loaded(model, tmp_path)), logits(model))
    assert not torch.allclose(logits(converted()), logits(model), atol=0.01)


def test_a_config_alone_is_enough(tmp_path):
    model = converted(scheme="logn-rope")
    model.config.save_pretrained(tmp_path)
    built = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert built.state_dict().keys() == model.state_dict().keys()
    assert built.config._attn_implementation == "scale_invariant"
    built.load_state_dict(model.state_dict())
    assert torch.equal(logits(built.eval()), logits(model))


def test_without_this_package_a_saved_model_is_refused(tmp_path, monkeypatch):
    converted().save_pretrained(tmp_path)
    # The error names the module that registers the implementation.
    monkeypatch.delitem(AttentionInterface._global_mapping, huggingface.__name__)
    with pytest.raises(ValueError, match=f'"{huggingface.__name__}"` is not supported'):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_with_another_attention_warns(family, tmp_path):
    converted(family).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="'eager' ignores the scheme 'scale-invariant-p-rope'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="scale_invariant")
    # Schemes that change the rotary alone use transformers' attention.
    converted(family, scheme="p-rope").save_pretrained(tmp_path / "p-rope")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(tmp_path / "p-rope", attn_implementation="eager")


def test_half_precision_survives_saving_and_loading(tmp_path):
    for scheme in ("logn-p-rope", "scale-invariant-p-rope"):
        model = huggingface.convert(tiny().to(torch.bfloat16), scheme)
        loaded = saved_and_loaded(model, tmp_path / scheme, dtype=torch.bfloat16)
        assert loaded.dtype == torch.bfloat16
        assert torch.equal(logits(loaded), logits(model))


def test_p_rope_is_written_in_transformers_own_format():
    model = converted(scheme="p-rope")
    parameters = model.config.rope_parameters
    assert parameters["rope_type"] == "proportional"
    assert parameters["partial_rotary_factor"] == 0.5
    expected = TruncatedRoPE().frequencies(16, LENGTH)
    torch.testing.assert_close(frequencies(model), expected, rtol=1e-5, atol=0)
    # Plain logits do not need our attention.
    assert model.config._attn_implementation == "sdpa"

    huggingface.convert(model, "p-rope", fraction=0.75, base=500.0)
    expected = ProportionalRoPE(0.75, 500.0).frequencies(16, LENGTH)
    torch.testing.assert_close(frequencies(model), expected, rtol=1e-5, atol=0)

    # 0.1 of 8 pairs is less than one: one rotates all the same.
    for share in (0.1, 0.125, 0.25, 1.0):
        huggingface.convert(model, "p-rope", rotating=share, base=20.0)
        expected = TruncatedRoPE(20.0, share).frequencies(16, LENGTH)
        torch.testing.assert_close(frequencies(model), expected, rtol=1e-5, atol=0)


def test_p_rope_of_gpt_neox_rotates_half_of_all_pairs():
    model = converted("gpt-neox")
    expected = TruncatedRoPE().frequencies(16, LENGTH)
    found = model.gpt_neox.rotary_emb.inv_freq.double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_every_type_of_layer_gets_the_rotary():
    model = converted("gemma3", scheme="nope")
    for kind in ("sliding_attention", "full_attention"):
        assert model.config.rope_parameters[kind]["partial_rotary_factor"] == 0.0
        assert not getattr(model.model.rotary_emb, f"{kind}_inv_freq").any()


def test_ntk_and_yarn_equal_our_schemes():
    model = converted(scheme="rope-ntk", train_length=16)
    logits(model, some_tokens(1, 48))
    expected = schemes.get("rope-ntk", train_length=16).rotary.frequencies(16, 48)
    torch.testing.assert_close(frequencies(model), expected, rtol=1e-5, atol=0)
    assert huggingface.convert(model, "rope").config.max_position_embeddings == 64

    huggingface.convert(model, "yarn", train_length=16, factor=3.0)
    expected = YaRN(16).frequencies(16, 48)
    torch.testing.assert_close(frequencies(model), expected, rtol=1e-5, atol=0)


def test_rope_with_another_base():
    model = converted(scheme="scale-invariant-rope", base=500.0)
    assert model.config.rope_parameters["rope_theta"] == 500.0
    assert huggingface.convert(model, "scale-invariant-rope").config.rope_parameters == {
        "rope_theta": 10_000.0,
        "rope_type": "default",
    }


def test_the_config_records_the_conversion():
    written = json.loads(converted(tau=5.0).config.to_json_string())
    assert written["attn_implementation"] == huggingface.__name__
    assert written[KEY]["scheme"] == "scale-invariant-p-rope"
    assert written[KEY]["options"] == {"tau": 5.0}
    assert written[KEY]["original"]["rope_parameters"]["rope_theta"] == 10_000.0


def test_damaged_settings_are_refused(tmp_path):
    model = converted()
    setattr(model.config, KEY, {"schema": "rope"})
    with pytest.raises(ValueError, match="must be what convert"):
        huggingface.convert(model)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("scheme", 5, "must be the name of a scheme, got 5"),
        ("options", [], r"must be a dictionary, got \[\]"),
        ("calibration", "x", "must be a dictionary or none, got 'x'"),
        ("calibration", {"spread": 1}, "calibration.spread must be a list of lists, got 1"),
        ("calibration", {"spread": [["1"]]}, r"spread\[0\]\[0\] must be a real number, got '1'"),
        ("rotary", 7, "must be a name, a dictionary or none, got 7"),
        ("original", "x", "must be a dictionary, got 'x'"),
    ],
)
def test_hostile_settings_are_named_with_their_field(part, value, message):
    model = converted()
    getattr(model.config, KEY)[part] = value
    with pytest.raises((ValueError, TypeError), match=rf"config\.{KEY}\..*{message}"):
        huggingface.convert(model)


@dataclass(frozen=True)
class OwnRotary(RoPE):
    """A rotary that transformers does not have."""

    def frequencies(self, head_dim, context_length):
        return super().frequencies(head_dim, context_length).flip(0)


OWN_SCHEMES = {
    "rope with alibi": (Scheme(RoPE(), distance=ALiBi()), {}, "default"),
    "another base": (Scheme(RoPE(500.0), distance=ScaleInvariant(3.0)), {}, "default"),
    "ntk with the transform": (Scheme(NTK(16), distance=ScaleInvariant()), {}, "dynamic"),
    "yarn with alibi": (
        Scheme(YaRN(16), YaRNTemperature(16), ALiBi()),
        {"factor": 4.0},
        "yarn",
    ),
    "yarn with logn": (Scheme(YaRN(16), LogN(16)), {"factor": 4.0}, "yarn"),
    "rotary alone": (Scheme(ProportionalRoPE(0.25)), {}, "proportional"),
}


@pytest.fixture
def registered():
    """Registers schemes for one test."""
    names = []

    def register(name, scheme):
        names.append(name.replace(" ", "-"))
        schemes.register(schemes.NamedScheme(names[-1], lambda: scheme))
        return names[-1]

    yield register
    for name in names:
        schemes.unregister(name)


@pytest.mark.parametrize("case", OWN_SCHEMES)
def test_a_registered_scheme_is_recognised_by_its_slots(case, registered, tmp_path):
    scheme, options, rope_type = OWN_SCHEMES[case]
    model = converted(scheme=registered(case, scheme), **options)
    rotary = model.config.rope_parameters
    assert rotary["rope_type"] == rope_type
    assert rotary["rope_theta"] == scheme.rotary.base
    # transformers applies YaRN's temperature with the rotary, and leaves it out for other scales.
    if rope_type == "yarn":
        assert ("attention_factor" in rotary) == isinstance(scheme.query_scale, LogN)
        layer = model.model.layers[0].self_attn.position_scheme
        assert (layer.query_scale is not None) == isinstance(scheme.query_scale, LogN)
    ours = model.config._attn_implementation == "scale_invariant"
    assert ours == (case != "rotary alone")
    length = 48 if rope_type == "dynamic" else LENGTH
    ids = some_tokens(1, length)
    out = logits(model, ids)
    assert not torch.equal(out, logits(tiny(), ids))
    assert torch.equal(logits(saved_and_loaded(model, tmp_path), ids), out)


def test_a_scheme_that_transformers_cannot_express_is_refused(registered):
    model = tiny()
    before = logits(model)
    own = registered("own-rotary", Scheme(OwnRotary(), distance=ALiBi()))
    with pytest.raises(NotImplementedError, match=r"'own-rotary' has the rotary OwnRotary\("):
        huggingface.convert(model, own)
    by_context = registered("by-context", Scheme(RoPE(), YaRNTemperature(16)))
    with pytest.raises(NotImplementedError, match="depends on the context length"):
        huggingface.convert(model, by_context)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ({"scheme": "scale-invariant"}, ValueError, "did you mean"),
        ({"taw": 3}, TypeError, "no option 'taw'.*did you mean 'tau'"),
        ({"scheme": "rope", "tau": 3.0}, TypeError, "no option 'tau'"),
        (
            {"scheme": "scale-invariant-rope", "factor": 4},
            TypeError,
            "no option 'factor'.*with rotary=..., factor",
        ),
        (
            {"scheme": "logn-rope", "counts": "context"},
            NotImplementedError,
            "depends on the context length",
        ),
        ({"tau": -1.0}, ValueError, "tau"),
        ({"tau": [1.0, 2.0]}, ValueError, "a list of 4, one per head; got a list of 2"),
        ({"tau": [1.0] * 4, "highest_tau": 2.0}, ValueError, "one number, the lowest"),
        ({"tau": torch.ones(4)}, TypeError, "tau"),
        ({"fraction": 0.01}, ValueError, "fraction"),
        ({"scheme": "yarn"}, TypeError, "factor is missing"),
        ({"scheme": "yarn", "factor": 0.0}, ValueError, "factor"),
        ({"scheme": "yarn", "factor": 0.5}, ValueError, "factor must be at least 1.*0.5"),
        ({"scheme": "logn-rope", "train_length": 0}, ValueError, "train_length"),
        (
            {"calibration": huggingface.Calibration(torch.ones(3, 4))},
            ValueError,
            "2 layers and 4 heads",
        ),
        (
            {"scheme": "nope", "calibration": huggingface.Calibration(torch.ones(2, 4))},
            ValueError,
            "calibration must be None",
        ),
        (
            {"scheme": "alibi", "calibration": huggingface.Calibration(torch.ones(2, 4))},
            ValueError,
            "calibration must be None for scheme 'alibi'",
        ),
        (
            {"sigma": 2.0, "calibration": huggingface.Calibration(torch.ones(2, 4))},
            TypeError,
            "sigma cannot be combined with calibration",
        ),
        (
            {"rotary": "yarn", "factor": 4.0},
            ValueError,
            "rotary must be None for scheme 'scale-inv",
        ),
        (
            {"scheme": "scale-invariant-rope", "rotary": "yar"},
            ValueError,
            "rotary must be one of own, .* got 'yar' .did you mean 'yarn'",
        ),
        ({"scheme": "scale-invariant-rope", "rotary": {"factor": 2.0}}, ValueError, "a rope_type"),
        ({"scheme": "scale-invariant-rope", "rotary": "yarn"}, TypeError, "factor is missing"),
        (
            {"scheme": "scale-invariant-rope", "rotary": "ntk", "factor": 0.5},
            ValueError,
            "factor must be at least 1",
        ),
        (
            {"scheme": "scale-invariant-rope", "rotary": "ntk", "factor": 2.0, "base": 9.0},
            TypeError,
            "base cannot be combined with rotary",
        ),
        ({"calibration": {"spread": 1.0}}, TypeError, "calibration must be a Calibration, .* dict"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(named, error, message):
    model = tiny()
    before, config = logits(model), model.config.to_dict()
    with pytest.raises(error, match=message):
        huggingface.convert(model, **named)
    assert torch.equal(logits(model), before)
    assert model.config.to_dict() == config
