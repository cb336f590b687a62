"""What a scheme adds to an attention module: a factor for queries, gain and bias, and calibration."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import DistanceAffine, distance_affine_attention, scale_invariant_attention
from ..attention.numerics import compute_dtype
from ..schemes import Scheme, TokenPositions
from ..schemes.distance import ScaleInvariantTables
from .placing import Placing
from .settings import IMPLEMENTATION, Settings, name_implementation, read

NAME = "position_scheme"


class Slots(nn.Module):
    """Query scale and distance of a scheme in one layer, and the statistics of its scores.

    With statistics a score S becomes ``(S - mean) / spread`` before the scheme sees it.
    """

    def __init__(
        self,
        scheme: Scheme,
        heads: int,
        *,
        tau: list[float] | None = None,
        mean: list[float] | None = None,
        spread: list[float] | None = None,
    ) -> None:
        super().__init__()
        self._scheme, self._heads, self._started = scheme, heads, False
        self.query_scale = None if scheme.query_scale is None else scheme.query_scale.build(heads)
        self.distance = scheme.distance.build(heads)
        self.tau = tau
        self.mean = mean
        self.spread = spread

    @property
    def _is_hf_initialized(self) -> bool:
        return self._started

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, initialised: bool) -> None:
        """Set by transformers when it has started what was not loaded, which it cannot do for ours."""
        if not initialised or any(parameter.is_meta for parameter in self.parameters()):
            return
        with torch.device("cpu"), torch.no_grad():
            fresh = Slots(self._scheme, self._heads)
            for name, start in fresh.named_parameters():
                own = self.get_parameter(name)
                if not self._started and not getattr(own, "_is_hf_initialized", False):
                    own.copy_(start)
        self._started = True

    def scaled(self, query: Tensor, placing: Placing) -> Tensor:
        """Queries ``[B, H, L, D]`` with their factors."""
        dtype = compute_dtype(query.dtype)
        factor: Tensor | None = None
        if self.query_scale is not None:
            counted = placing.counted
            factor = self.query_scale(TokenPositions(counted, counted.shape[-1])).to(dtype)
        if self.spread is not None:
            shrunk = 1 / torch.tensor(self.spread, dtype=dtype, device=query.device).unsqueeze(-1)
            factor = shrunk if factor is None else factor * shrunk
        return query if factor is None else (query * factor.unsqueeze(-1)).to(query.dtype)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        placing: Placing,
        *,
        scale: float | None,
        return_lse: bool = False,
    ) -> Any:
        """The op on scaled queries, with what it returns."""
        shared = {**placing.visibility, "scale": scale, "return_lse": return_lse}
        tau = self._tau(query.device)
        if tau is not None and self.mean is None:
            return scale_invariant_attention(query, key, value, tau=tau, **shared)
        affine = self.tables(placing, query)
        return distance_affine_attention(query, key, value, affine, **shared)

    def _tau(self, device: torch.device) -> float | Tensor | None:
        """tau, a number or ``[heads]``, of a scheme that has one."""
        if self.tau is not None:
            return torch.tensor(self.tau, dtype=torch.float64, device=device)
        if isinstance(self.distance, ScaleInvariantTables):
            return self.distance.tau(device)
        return None

    def tables(self, placing: Placing, query: Tensor) -> DistanceAffine:
        """Gain and bias for every distance of a call, for scores from which no mean was taken."""
        gain, bias = self._tables_of_scheme(placing, query)
        shift = self.shift(query.device)
        if shift is not None:
            bias = bias + gain * shift.unsqueeze(-1)
        return _in_dtype(gain, bias, query)

    def tables_of_scheme(self, placing: Placing, query: Tensor) -> DistanceAffine:
        """Gain and bias for every distance of a call, for calibrated scores."""
        return _in_dtype(*self._tables_of_scheme(placing, query), query)

    def shift(self, device: torch.device) -> Tensor | None:
        """What a calibration adds to the scaled scores of each head, float64 ``[heads]``."""
        if self.mean is None or self.spread is None:
            return None
        mean, spread = torch.tensor([self.mean, self.spread], dtype=torch.float64, device=device)
        shift: Tensor = -mean / spread
        return shift

    def _tables_of_scheme(self, placing: Placing, query: Tensor) -> tuple[Tensor, Tensor]:
        length = placing.span()
        tau = self._tau(query.device)
        if isinstance(tau, Tensor):
            affine = DistanceAffine.scale_invariant(
                length, tau, device=query.device, dtype=torch.float64
            )
            return affine.gain, affine.bias
        distances = torch.arange(length, dtype=torch.float64, device=query.device)
        found: tuple[Tensor, Tensor] = self.distance(distances)
        return found


def _in_dtype(gain: Tensor, bias: Tensor, query: Tensor) -> DistanceAffine:
    dtype = compute_dtype(query.dtype)
    return DistanceAffine(gain.to(dtype), bias.to(dtype))


def slots_for(settings: Settings, heads: int, layer: int) -> Slots:
    """The slots of one layer."""
    calibration = {name: layers[layer] for name, layers in (settings.calibration or {}).items()}
    return Slots(settings.attention_scheme, heads, tau=settings.head_taus, **calibration)


def fill(module: nn.Module, settings: Settings | None) -> None:
    """Give an attention module the slots of the settings, or take them away."""
    if NAME in module._modules:
        delattr(module, NAME)
    if settings is not None and settings.uses_our_attention:
        config: Any = module.config
        layer: Any = module.layer_idx
        slots = slots_for(settings, config.num_attention_heads, layer)
        weight = next(module.parameters(), None)
        if weight is not None:
            # As they would be loaded: in the dtype of the model, unless that is quantised.
            dtype = weight.dtype if weight.is_floating_point() else None
            slots = slots.to(weight.device, dtype)
        slots._is_hf_initialized = True
        setattr(module, NAME, slots)


def fill_when_built(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """A hook of torch for modules as they are put together: those of converted models get slots."""
    if module is None or not is_attention(module):
        return
    config: Any = module.config
    settings = read(config)
    if settings is not None and NAME not in module._modules:
        fill(module, settings)
        name_implementation(config, settings)
        _warn_of_other_attention(config, settings)


def _warn_of_other_attention(config: Any, settings: Settings) -> None:
    implementation = config._attn_implementation
    named = implementation is not None and IMPLEMENTATION not in implementation
    if named and settings.uses_our_attention:
        # The same message from every layer, which Python shows once.
        warnings.warn(
            f"attn_implementation={implementation!r} ignores the scheme {settings.scheme_name!r} of "
            f"this converted model: load it without the argument, or with {IMPLEMENTATION!r}",
            stacklevel=2,
        )


def is_attention(module: nn.Module) -> bool:
    """Whether a module is one layer's attention, as transformers builds it."""
    return (
        "Attention" in type(module).__name__
        and hasattr(module, "layer_idx")
        and hasattr(module, "config")
    )
