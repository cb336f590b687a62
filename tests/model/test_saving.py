"""Models saved and opened again: the same to the bit, at any length, or refused with what is wrong."""

from dataclasses import dataclass

import pytest
import torch
from saved_models import document, rewrite
from tiny_models import CASES, TRAINED, random_tokens, tiny_config, tiny_model
from torch import nn

from scale_invariant_attention import schemes
from scale_invariant_attention.model import GPT, GPTConfig, SavedModelError
from scale_invariant_attention.schemes import ALiBi, RoPE, ScaleInvariant, Scheme


def edit_config(folder, change):
    config = document(folder)["config"]
    change(config)
    rewrite(folder, config=config)


@pytest.mark.parametrize("case", CASES)
def test_every_scheme_comes_back_as_it_was_at_any_length(case, tmp_path):
    model = tiny_model(case, torch.float32)
    model.save_pretrained(tmp_path)
    same = GPT.from_pretrained(tmp_path)
    assert same.config == model.config
    assert same.scheme == model.scheme
    for length in (3, TRAINED, 3 * TRAINED):
        tokens = random_tokens(2, length)
        assert torch.equal(same(tokens), model(tokens))
    assert same.state_dict().keys() == model.state_dict().keys()
    assert all(parameter.requires_grad for parameter in same.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_kept_and_converted(dtype, tmp_path):
    tiny_model("logn-rope", dtype).save_pretrained(tmp_path)
    kept = GPT.from_pretrained(tmp_path)
    assert {weight.dtype for weight in kept.parameters()} == {dtype}
    converted = GPT.from_pretrained(tmp_path, dtype=torch.float32)
    for name, weight in converted.named_parameters():
        assert torch.equal(weight, kept.get_parameter(name).float())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_weights_can_be_stored_rounded_and_are_loaded_in_their_own_dtype(stored, tmp_path):
    model = tiny_model("logn-rope", torch.float32)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "rounded", stored_dtype=stored)
    opened = GPT.from_pretrained(tmp_path / "rounded")
    for name, weight in model.named_parameters():
        assert torch.equal(opened.get_parameter(name), weight.to(stored).float())
    whole, rounded = (
        next((tmp_path / name).glob("*.safetensors")).stat().st_size
        for name in ("whole", "rounded")
    )
    count = sum(weight.numel() for weight in model.parameters())
    assert abs(whole - rounded - 2 * count) < 100


def test_values_that_do_not_fit_the_stored_dtype_are_refused(tmp_path):
    model = tiny_model("rope", torch.float32)
    with torch.no_grad():
        model.head.weight[0, 0] = 1e5
    with pytest.raises(ValueError, match=r"as large as 100000, which 'head\.weight' has"):
        model.save_pretrained(tmp_path, stored_dtype=torch.float16)
    with pytest.raises(ValueError, match="stored_dtype must be one of float64"):
        model.save_pretrained(tmp_path, stored_dtype=torch.int8)
    assert not list(tmp_path.iterdir())


def test_settings_of_the_opened_model_are_those_given(tmp_path):
    tiny_model("rope", torch.float32).save_pretrained(tmp_path)
    opened = GPT.from_pretrained(tmp_path, backend="tiled", checkpoint_activations=True)
    assert (opened.backend, opened.checkpoint_activations) == ("tiled", True)


def test_weights_gathered_elsewhere_are_saved_in_place_of_its_own(tmp_path):
    model, other = tiny_model("logn-rope", torch.float32), tiny_model("logn-rope", torch.float32)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 1
    model.save_pretrained(tmp_path, state_dict=other.state_dict())
    saved = GPT.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in other.state_dict().items())
    short = dict(list(other.state_dict().items())[1:])
    with pytest.raises(ValueError, match=r"state_dict cannot be saved: .*embedding.* is missing"):
        model.save_pretrained(tmp_path / "short", state_dict=short)
    assert not (tmp_path / "short").exists()


def test_a_model_in_shards_opens_and_is_replaced_by_a_smaller_one(tmp_path):
    large = tiny_model("rope", torch.float32, layers=3)
    large.save_pretrained(tmp_path, shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    tokens = random_tokens(1, 9)
    assert torch.equal(GPT.from_pretrained(tmp_path)(tokens), large(tokens))
    small = tiny_model("alibi", torch.float32, layers=1)
    small.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert torch.equal(GPT.from_pretrained(tmp_path)(tokens), small(tokens))


def test_slots_of_ones_own_must_be_given_again(tmp_path):
    own = Scheme(rotary=RoPE(base=100.0), distance=ALiBi())
    model = GPT(tiny_config("scale-invariant-p-rope"), scheme=own)
    assert model.config.scheme_name is None
    model.save_pretrained(tmp_path)
    with pytest.raises(SavedModelError, match=r"names no scheme: .*scheme=Scheme"):
        GPT.from_pretrained(tmp_path)
    nn.init.normal_(model.head.weight)
    model.save_pretrained(tmp_path)
    tokens = random_tokens(1, 9)
    assert torch.equal(GPT.from_pretrained(tmp_path, scheme=own)(tokens), model(tokens))


@dataclass(frozen=True)
class WithBuffers:
    """A slot that holds more than parameters."""

    def build(self, heads):
        return BufferTables(heads)


class BufferTables(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", torch.linspace(0.1, 1, heads), persistent=False)
        self.register_buffer("count", torch.tensor(heads))
        self.offset = torch.tensor(0.5)

    def forward(self, distance):
        slopes = (self.slopes + self.offset).unsqueeze(-1) * self.count
        return torch.ones_like(distance), -slopes.double() * distance


def test_what_a_slot_holds_beyond_parameters_comes_back(tmp_path):
    model = GPT(tiny_config("nope"), scheme=Scheme(distance=WithBuffers()))
    nn.init.normal_(model.head.weight)
    model.save_pretrained(tmp_path)
    opened = GPT.from_pretrained(tmp_path, scheme=model.scheme)
    tokens = random_tokens(1, 9)
    assert torch.equal(opened(tokens), model(tokens))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda config: config.pop("scheme_name"), "its configuration lacks scheme_name"),
        (lambda config: config.update(colour=1), "no field 'colour'"),
        (lambda config: config.update(scheme_name="rope-2"), "no scheme 'rope-2'"),
        (lambda config: config.update(layers=3), "layers is 3 in the .*, but 2 in the weights"),
        (lambda config: config.update(layers=1), "layers is 1 in the .*, but 2 in the weights"),
        (lambda config: config.update(width=96), "width is 96 in the .*, but 48 in the weights"),
        (lambda config: config.update(scheme_name="logn-rope", train_length=1), "train_length"),
        (lambda config: config.update(heads="three"), "heads must be an integer, got 'three'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_with_the_folder(change, complaint, tmp_path):
    tiny_model("rope", torch.float32).save_pretrained(tmp_path)
    edit_config(tmp_path, change)
    with pytest.raises(SavedModelError, match=complaint) as caught:
        GPT.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": 10**9}, "layers is 1000000000 in the configuration, but 2 in the weights"),
        ({"layers": 10**400}, "layers is an integer of 1329 bits in the configuration, but 2"),
        ({"width": 2**40, "heads": 1}, "width is 1099511627776 in the configuration, but 48"),
        ({"width": 2**40}, "width is 1099511627776 in the configuration, but 48"),
        ({"vocab_size": 2**40}, "vocab_size is 1099511627776 in the configuration, but 50"),
        ({"vocab_size": True}, "vocab_size must be an integer, got True"),
        ({"layers": "2"}, "layers must be an integer, got '2'"),
        ({"layers": [2]}, r"layers must be an integer, got \[2\]"),
        ({"layers": None}, "layers must be an integer, got None"),
        ({"scheme_options": ["base"]}, r"scheme_options must be a dict, got \['base'\]"),
        ({"scheme_options": {"base": "16"}}, "base must be a real number, got '16'"),
        ({"scheme_options": {"base": 10**400}}, "base must be finite, got an integer of 1329 bits"),
        ({"scheme_name": {}}, "scheme"),
        ({"heads": 48 * 10**30}, "width must be a multiple of heads"),
        ({"train_length": -1}, "train_length must be at least 1, got -1"),
    ],
)
def test_hostile_sizes_are_refused_before_anything_is_built(
    changes, complaint, tmp_path, monkeypatch
):
    tiny_model("rope", torch.float32).save_pretrained(tmp_path)
    edit_config(tmp_path, lambda config: config.update(changes))
    built = []
    monkeypatch.setattr(GPT, "__init__", lambda *arguments, **settings: built.append(arguments))
    with pytest.raises(SavedModelError, match=complaint) as caught:
        GPT.from_pretrained(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert not built


def test_a_truncated_file_and_a_missing_folder_are_refused(tmp_path):
    tiny_model("rope", torch.float32).save_pretrained(tmp_path / "model")
    (weights,) = (tmp_path / "model").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(SavedModelError, match="truncated"):
        GPT.from_pretrained(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        GPT.from_pretrained(tmp_path / "elsewhere")


@pytest.mark.parametrize("dtype", ["float16", torch.int32])
def test_a_dtype_that_is_none_is_refused(dtype, tmp_path):
    tiny_model("rope", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="dtype must be a floating dtype"):
        GPT.from_pretrained(tmp_path, dtype=dtype)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"config": "mini"},
            r"config must be a GPTConfig, as GPTConfig.preset\(name\), got 'mini'",
        ),
        ({"scheme": "rope"}, r"scheme must be a Scheme or .*GPTConfig\(scheme_name=name\)"),
        ({"checkpoint_activations": "no"}, "checkpoint_activations must be True or False"),
    ],
)
def test_what_a_model_is_made_of_is_checked(arguments, complaint):
    with pytest.raises(TypeError, match=complaint):
        GPT(**({"config": tiny_config("rope")} | arguments))


def test_a_model_without_a_scheme_by_name_rotates_nothing_it_need_not():
    config = GPTConfig(vocab_size=9, layers=1, width=9, heads=3, scheme_name=None)
    model = GPT(config, scheme=Scheme(distance=ScaleInvariant()))
    assert model(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 9)
    with pytest.raises(ValueError, match="9 / 3 does not suit the scheme"):
        GPT(config, scheme=Scheme(rotary=RoPE()))


@pytest.mark.parametrize("case", ["logn-rope", "learned tau"])
def test_initialising_starts_what_the_scheme_learns_again_also_from_nothing(case):
    with torch.device("meta"):
        model = GPT(tiny_config(case))
    model = model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.initialise()
    fresh = GPT(tiny_config(case))
    trained = {
        name: weight.clone() for name, weight in fresh.named_parameters() if weight.ndim == 1
    }
    with torch.no_grad():
        for name in trained:
            fresh.get_parameter(name).add_(1)
    torch.manual_seed(0)
    fresh.initialise()
    assert all(torch.equal(fresh.get_parameter(name), start) for name, start in trained.items())
    for name, weight in fresh.named_parameters():
        assert torch.equal(model.get_parameter(name), weight), name


def test_the_training_length_of_a_cache_is_that_of_the_slots():
    scheme = schemes.get("rope-ntk", train_length=4)
    model = GPT(tiny_config("rope", train_length=16), scheme=scheme)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        tokens = random_tokens(1, 4)
        cache = model.new_cache()
        steps = [model(tokens[:, i : i + 1], cache=cache) for i in range(4)]
        torch.testing.assert_close(torch.cat(steps, 1), model(tokens), atol=1e-4, rtol=1e-4)
        with pytest.raises(ValueError, match="outgrown the context length of its cache, 4"):
            model(tokens[:, :1], cache=cache)
