import json

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import _optimisers as module
from scale_invariant_attention.training._muon import Muon
from scale_invariant_attention.training._optimisers import LearningRates, build_optimisers

SCALARS = {
    "scale-invariant-p-rope": {},
    "logn-rope": {},
    "scale-invariant-rope": {"learn_tau": True},
}


def model_of(scheme="logn-rope", seed=0, **sizes):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 32, "layers": 2, "width": 16, "heads": 2, "train_length": 16} | sizes
    return GPT(GPTConfig(scheme_name=scheme, scheme_options=SCALARS[scheme], **sizes))


def train(model, optimisers, steps, first=0):
    for step in range(first, first + steps):
        tokens = torch.randint(32, (2, 17), generator=torch.Generator().manual_seed(step))
        optimisers.zero_grad()
        model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
        optimisers.set_schedule_factor(1 - step / 10)
        optimisers.step()


def same_parameters(model, other):
    mine, others = model.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[n], others[n]) for n in mine)


@pytest.mark.parametrize("scheme", SCALARS)
def test_every_parameter_has_the_rate_of_its_group(scheme):
    model = model_of(scheme)
    rates = LearningRates(embedding=1.0, head=2.0, scalars=3.0, matrices=4.0)
    optimisers = build_optimisers(model, rates)
    optimisers.set_schedule_factor(0.5)
    found = {}
    for optimiser in optimisers.optimisers:
        for group in optimiser.param_groups:
            found |= {p: (type(optimiser), group["lr"]) for p in group["params"]}
    assert len(found) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        if name == "embedding.weight":
            expected = torch.optim.Adam, 0.5
        elif name == "head.weight":
            expected = torch.optim.Adam, 1.0
        elif parameter.ndim == 2:
            expected = Muon, 2.0
        else:
            expected = torch.optim.Adam, 1.5
        assert found[parameter] == expected, name


def test_the_defaults_are_the_papers():
    adam, muon = build_optimisers(model_of()).optimisers
    assert [group["lr"] for group in adam.param_groups] == [0.3, 0.002, 0.002]
    assert all(group["betas"] == (0.9, 0.95) for group in adam.param_groups)
    assert all(group["weight_decay"] == 0 for group in adam.param_groups)
    assert muon.param_groups[0]["lr"] == 0.02
    assert muon.param_groups[0]["momentum"] == 0.95


def test_adam_equals_its_formula():
    model = model_of("scale-invariant-p-rope")
    optimisers = build_optimisers(model)
    start = model.head.weight.detach().clone()
    mean, square, expected = torch.zeros_like(start), torch.zeros_like(start), start.double()
    for step in range(1, 4):
        gradient = torch.randn(start.shape, generator=torch.Generator().manual_seed(step))
        model.head.weight.grad = gradient
        optimisers.step()
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        unbiased = mean / (1 - 0.9**step), square / (1 - 0.95**step)
        expected = expected - 0.002 * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    torch.testing.assert_close(model.head.weight.detach(), expected.float())


def test_a_factor_of_zero_changes_nothing_and_training_learns():
    model, twin = model_of(), model_of()
    optimisers = build_optimisers(model)
    tokens = torch.arange(17).repeat(2, 1)
    losses = []
    for factor in (0.0, 1.0, 1.0, 1.0):
        optimisers.zero_grad()
        loss = model(tokens[:, :-1], targets=tokens[:, 1:])
        loss.backward()
        losses.append(float(loss.detach()))
        optimisers.set_schedule_factor(factor)
        optimisers.step()
        if factor == 0:
            assert same_parameters(model, twin)
    assert losses[0] == losses[1] > losses[2] > losses[3]


@pytest.mark.parametrize("scheme", SCALARS)
def test_resumed_training_is_the_same_to_the_bit(scheme):
    model = model_of(scheme)
    optimisers = build_optimisers(model)
    train(model, optimisers, 3)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: tensor.clone() for name, tensor in optimisers.state_tensors().items()}
    values = json.loads(json.dumps(optimisers.state_values()))
    train(model, optimisers, 3, first=3)

    resumed = model_of(scheme, seed=1)
    resumed.load_state_dict(weights)
    # The rates too are those of the state.
    again = build_optimisers(resumed, LearningRates(1.0, 1.0, 1.0, 1.0))
    again.load_state(tensors, values)
    assert again.state_values() == values
    assert again.rates == LearningRates()
    for name, tensor in again.state_tensors().items():
        assert torch.equal(tensor, tensors[name])
        assert tensor.data_ptr() != tensors[name].data_ptr()
    train(resumed, again, 3, first=3)
    assert same_parameters(model, resumed)


def test_the_state_before_the_first_step_is_empty_and_loads():
    model = model_of()
    fresh = build_optimisers(model)
    assert fresh.state_tensors() == {}
    used = build_optimisers(model)
    train(model, used, 1)
    used.load_state(fresh.state_tensors(), fresh.state_values())
    assert used.state_tensors() == {}
    assert used.schedule_factor == 1


def test_parameters_that_never_had_a_gradient_have_no_state():
    model = model_of()
    model.embedding.weight.requires_grad_(False)
    optimisers = build_optimisers(model)
    train(model, optimisers, 1)
    values = optimisers.state_values()
    assert values["unchanged"] == ["embedding.weight"]
    again = build_optimisers(model)
    again.load_state(optimisers.state_tensors(), values)
    assert again.state_tensors().keys() == optimisers.state_tensors().keys()


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=["compiled", "blocks compiled", "ddp", "both"])
def wrap(request, process_group):
    def compile_blocks(model):
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
        return model

    return {
        "compiled": lambda model: torch.compile(model, backend="eager"),
        "blocks compiled": compile_blocks,
        "ddp": DistributedDataParallel,
        "both": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
    }[request.param]


def test_wrapping_changes_neither_groups_nor_names(wrap):
    plain = model_of()
    optimisers = build_optimisers(plain)
    train(plain, optimisers, 1)
    inner = model_of()
    outer = wrap(inner)
    wrapped = build_optimisers(outer)
    wrapped.load_state(optimisers.state_tensors(), optimisers.state_values())
    assert list(wrapped.state_tensors()) == list(optimisers.state_tensors())
    for mine, other in zip(wrapped.optimisers, optimisers.optimisers, strict=True):
        names = [group["name"] for group in mine.param_groups]
        assert names == [group["name"] for group in other.param_groups]


def test_a_wrapped_model_is_trained(process_group):
    plain, inner = model_of(), model_of()
    outer = DistributedDataParallel(inner)
    train(plain, build_optimisers(plain), 2)
    train(outer, build_optimisers(outer), 2)
    assert same_parameters(plain, inner)


def test_the_size_of_the_state_is_known_in_advance():
    model = model_of()
    optimisers = build_optimisers(model)
    expected = optimisers.state_bytes
    train(model, optimisers, 1)
    tensors = optimisers.state_tensors().values()
    assert expected == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head.weight.exp_avg"), "must have 'head.weight.exp_avg'"),
        (lambda t: t.update({"tail.weight.step": torch.ones(())}), "have 'tail.weight.step'"),
        (
            lambda t: t.update({"head.weight.exp_avg": torch.ones(3, 3)}),
            r"'head.weight.exp_avg' must be torch.float32 of shape \(32, 16\)",
        ),
        (
            lambda t: t.update({"head.weight.step": torch.ones((), dtype=torch.int64)}),
            "'head.weight.step' must be",
        ),
    ],
)
def test_the_state_of_another_model_is_refused_and_changes_nothing(change, message):
    model = model_of()
    optimisers = build_optimisers(model)
    train(model, optimisers, 1)
    tensors = {name: 2 * tensor for name, tensor in optimisers.state_tensors().items()}
    change(tensors)
    before = {name: tensor.clone() for name, tensor in optimisers.state_tensors().items()}
    with pytest.raises(ValueError, match=message):
        optimisers.load_state(tensors, optimisers.state_values())
    after = optimisers.state_tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_fewer_layers_are_another_model():
    model = model_of(layers=1)
    small = build_optimisers(model)
    train(model, small, 1)
    with pytest.raises(ValueError, match=r"must have 'blocks\.1"):
        build_optimisers(model_of()).load_state(small.state_tensors(), small.state_values())


def test_half_precision_weights_are_refused():
    with pytest.raises(ValueError, match=r"float32, got blocks.0.* in torch.bfloat16"):
        build_optimisers(model_of().bfloat16())


@pytest.mark.parametrize("rates", [{"head": -0.1}, {"matrices": float("inf")}])
def test_wrong_rates_are_refused(rates):
    with pytest.raises(ValueError, match=next(iter(rates))):
        LearningRates(**rates)


def test_a_negative_factor_is_refused():
    with pytest.raises(ValueError, match=r"factor must be at least 0, got -0\.5"):
        build_optimisers(model_of()).set_schedule_factor(-0.5)


@pytest.mark.parametrize("fast", [True, False])
def test_torchs_muon_runs_where_bfloat16_is_fast(monkeypatch, fast):
    monkeypatch.setattr(module, "fast_in_bfloat16", lambda _: fast)
    model = model_of()
    muon = build_optimisers(model, precision="bfloat16").optimisers[1]
    assert type(muon) is (torch.optim.Muon if fast else Muon)
    (group,) = muon.param_groups
    assert (group["lr"], group["momentum"]) == (0.02, 0.95)
    if fast:
        assert (group["weight_decay"], group["nesterov"]) == (0, True)


@pytest.mark.parametrize("units", [True, False])
def test_only_gpus_with_units_for_it_are_fast_in_bfloat16(monkeypatch, units):
    asked = []
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda **options: asked.append(options) or units
    )
    assert module.fast_in_bfloat16(torch.device("cuda")) is units
    assert not module.fast_in_bfloat16(torch.device("meta"))
    assert asked == [{"including_emulation": False}]


@pytest.mark.parametrize(
    ("has", "library", "fast"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True, True),
        ({"avx512_bf16": False, "amx_bf16": False}, True, False),
        ({"avx512_bf16": True}, False, False),
        # An ARM processor.
        ({"neon": True}, True, False),
    ],
)
def test_cpus_are_asked_for_their_units(monkeypatch, has, library, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: library)
    assert module.fast_in_bfloat16(torch.device("cpu")) is fast


def test_float32_trainings_on_cpus_orthogonalise_in_float32(monkeypatch):
    monkeypatch.setattr(module, "fast_in_bfloat16", lambda _: True)
    muon = build_optimisers(model_of()).optimisers[1]
    assert (type(muon), muon.dtype) == (Muon, None)
