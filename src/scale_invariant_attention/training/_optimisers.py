"""The optimisers of a GPT: Muon for the matrices of its blocks, Adam for everything else."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import real_number
from ..model import parameter_split
from ._muon import Muon
from ._parallel import is_sharded, part_like

BETAS = (0.9, 0.95)
MOMENTUM = 0.95
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
MUON_STATE = ("momentum_buffer",)

# Parts that torch.compile and DistributedDataParallel add to the names of parameters.
WRAPPERS = ("_orig_mod", "module")


@dataclass(frozen=True)
class LearningRates:
    """Learning rates of the four groups of parameters; the defaults are the paper's for 162M."""

    embedding: float = 0.3
    head: float = 0.002
    scalars: float = 0.002
    matrices: float = 0.02

    def __post_init__(self) -> None:
        for field in fields(self):
            real_number(field.name, getattr(self, field.name), at_least=0)


class Optimisers:
    """Adam and Muon with the rates of four groups, and one schedule for all.

    Built by :func:`build_optimisers`. The state is tensors named by parameter and kind, such as
    ``blocks.0.mlp.up.weight.momentum_buffer``, and JSON values. A model and its wrapped or compiled form
    have the same names, and the state fits both.
    """

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, nn.Parameter]],
        rates: LearningRates,
        precision: str = "float32",
    ) -> None:
        self.rates = rates
        self.schedule_factor = 1.0
        matrices = list(groups["matrices"].values())
        others = [
            {"name": group, "params": list(groups[group].values()), "lr": getattr(rates, group)}
            for group in ("embedding", "head", "scalars")
            if groups[group]
        ]
        parameters = [p for group in groups.values() for p in group.values()]
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        self._adam = torch.optim.Adam(others, betas=BETAS, fused=fused)
        self._muon = _muon(matrices, rates.matrices, precision)
        # Every parameter by name, with its optimiser and the kinds of tensors in its state.
        self._by_name: dict[str, tuple[nn.Parameter, torch.optim.Optimizer, tuple[str, ...]]] = {
            name: (p, self._muon, MUON_STATE)
            if group == "matrices"
            else (p, self._adam, ADAM_STATE)
            for group, members in groups.items()
            for name, p in members.items()
        }

    @property
    def optimisers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        """Adam and Muon themselves."""
        return self._adam, self._muon

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for optimiser in self.optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def set_schedule_factor(self, factor: float) -> None:
        """Set every learning rate to `factor` times its base rate."""
        self.schedule_factor = real_number("factor", factor, at_least=0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = getattr(self.rates, group["name"]) * self.schedule_factor

    @property
    def state_bytes(self) -> int:
        """Size of the state once every parameter has been updated, known in advance."""
        return sum(
            4 if kind == "step" else parameter.numel() * parameter.element_size()
            for parameter, _, kinds in self._by_name.values()
            for kind in kinds
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """The state of every updated parameter: the tensors themselves, sharded like the parameter."""
        # Indexing would create an empty state.
        return {
            f"{name}.{kind}": state[kind]
            for name, (parameter, optimiser, kinds) in self._by_name.items()
            if (state := optimiser.state.get(parameter))
            for kind in kinds
        }

    def state_values(self) -> dict[str, Any]:
        """The rest of the state: rates, schedule factor, and parameters that have not been updated."""
        unchanged = [name for name, (p, it, _) in self._by_name.items() if not it.state.get(p)]
        values = {"rates": asdict(self.rates), "schedule_factor": self.schedule_factor}
        return values | {"unchanged": unchanged}

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore the exact state that :meth:`state_tensors` and :meth:`state_values` returned.

        The tensors are whole, and are copied to the devices of the parameters; each rank takes its part
        of those of sharded parameters. If they do not fit, nothing is changed.
        """
        expected = {
            f"{name}.{kind}": (parameter, optimiser, kind)
            for name, (parameter, optimiser, kinds) in self._by_name.items()
            if name not in values["unchanged"]
            for kind in kinds
        }
        _check_state(tensors, expected)
        rates = LearningRates(**values["rates"])
        for optimiser in self.optimisers:
            optimiser.state.clear()
        for name, (parameter, optimiser, kind) in expected.items():
            # Adam counts its steps on the device only if it is fused.
            on_cpu = kind == "step" and not self._adam.defaults["fused"]
            device = "cpu" if on_cpu else parameter.device
            tensor = tensors[name].detach().to(device, copy=True)
            part = tensor if kind == "step" else part_like(tensor, parameter)
            optimiser.state[parameter][kind] = part
        self.rates = rates
        self.set_schedule_factor(values["schedule_factor"])


def build_optimisers(
    model: nn.Module, rates: LearningRates | None = None, *, precision: str = "float32"
) -> Optimisers:
    """The optimisers of a GPT, which may be wrapped or compiled.

    Weights and state are float32 (or float64); to compute in lower precision, use autocast. With the
    `precision` "bfloat16", Muon orthogonalises in it on CPUs that have units for it, as it always
    does on GPUs.

    >>> from scale_invariant_attention.model import GPT, GPTConfig
    >>> model = GPT(GPTConfig.preset("mini"))
    >>> optimisers = build_optimisers(model, LearningRates(matrices=0.01))
    >>> optimisers.set_schedule_factor(0.5)
    >>> tokens = torch.randint(256, (1, 9))
    >>> model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
    >>> optimisers.step()
    >>> sorted(optimisers.state_tensors())[-3:]
    ['head.weight.exp_avg', 'head.weight.exp_avg_sq', 'head.weight.step']
    """
    split = parameter_split(model)
    groups = {
        field.name: {plain_name(name): p for name, p in getattr(split, field.name).items()}
        for field in fields(split)
    }
    for name, parameter in (item for group in groups.values() for item in group.items()):
        if parameter.dtype not in (torch.float32, torch.float64):
            fix = "to compute in less, train float32 weights under torch.autocast"
            got = f"{name} in {parameter.dtype}"
            raise ValueError(f"model must have weights in float32, got {got}; {fix}")
    return Optimisers(groups, LearningRates() if rates is None else rates, precision)


def plain_name(name: str) -> str:
    """The name of a parameter in the model itself, without the parts of wrappers.

    >>> plain_name("module._orig_mod.blocks.0.mlp.up.weight")
    'blocks.0.mlp.up.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def fast_in_bfloat16(device: torch.device) -> bool:
    """Whether a device has units for bfloat16 matrix products, and torch uses them.

    The device is asked what it has: an answer by the clock could differ when a run resumes.
    """
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        units = has.get("avx512_bf16", False) or has.get("amx_bf16", False)
        return bool(units and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _muon(matrices: list[nn.Parameter], rate: float, precision: str) -> torch.optim.Optimizer:
    """Muon in bfloat16 where that is fast, torch's own if every rank holds whole matrices.

    On CPUs only if the training is in bfloat16: one in float32 gives the same numbers on all of them.
    Torch's is unaware of shards: ranks would communicate in most of its products, and it fails for a
    matrix of one row.
    """
    groups = [{"name": "matrices", "params": matrices, "lr": rate}]
    device = matrices[0].device
    wanted = precision == "bfloat16" or device.type == "cuda"
    fast = wanted and fast_in_bfloat16(device)
    if fast and not is_sharded(matrices[0]):
        return torch.optim.Muon(groups, momentum=MOMENTUM, nesterov=True, weight_decay=0.0)
    return Muon(groups, momentum=MOMENTUM, dtype=torch.bfloat16 if fast else None)


def _check_state(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[nn.Parameter, object, str]]
) -> None:
    question = "do the tensors belong to this model?"
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise ValueError(f"tensors must have {name!r}, which is missing; {question}")
        if name not in expected:
            raise ValueError(f"tensors have {name!r}, which the model does not have; {question}")
        (parameter, _, kind), tensor = expected[name], tensors[name]
        like = torch.empty((), dtype=torch.float32) if kind == "step" else parameter
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            right = f"{like.dtype} of shape {tuple(like.shape)}"
            raise ValueError(f"{name!r} must be {right}, got {got}; {question}")
