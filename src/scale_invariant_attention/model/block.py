"""One block of the GPT: attention with a scheme, and an MLP.

Shapes: B batch, L tokens, N keys, W width, H heads, D head_dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import DistanceAffine
from ..attention.api import attend
from ..attention.backends import BACKENDS
from ..schemes import Scheme, SchemeLayer
from ..schemes.rotary import Rotation
from ._cache import KeyValueCache, LayerCache
from ._segments import SegmentLayout
from .context_parallel import SharedRows
from .inputs import TokenLayout
from .parameters import belongs_to_scheme


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Everything that layers with equal schemes share in one call of the model."""

    layout: TokenLayout
    rotate: Rotation | None
    cache: LayerCache | None
    backend: str
    shared: SharedRows | None = None
    segments: Mapping[int, SegmentLayout] = field(default_factory=dict)  # by their length


class BlockSizes(Protocol):
    """The part of a model's configuration that its blocks need."""

    @property
    def width(self) -> int:
        """Size of the residual stream."""

    @property
    def heads(self) -> int:
        """Number of heads."""

    @property
    def head_dim(self) -> int:
        """Dimensions per head."""

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised."""


def check_backend(backend: str) -> None:
    """Refuse a name that no backend has; whether it runs here is known when it is called."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}; got {backend!r}")


class Block(nn.Module):
    """``x + attention(rms(x))``, then ``x + mlp(rms(x))``."""

    def __init__(self, config: BlockSizes, scheme: Scheme, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, scheme, layer)
        self.mlp = MLP(config.width)

    def forward(self, x: Tensor, call: ForwardPass) -> Tensor:
        """``[B, L, W]`` to the same."""
        attended: Tensor = x + self.attention(rms(x), call)
        out: Tensor = attended + self.mlp(rms(attended))
        return out


class Attention(nn.Module):
    """Self-attention with a position scheme."""

    def __init__(self, config: BlockSizes, scheme: Scheme, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.head_dim
        self.qk_norm = config.qk_norm
        self.layer = layer
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.width, config.width, bias=False) for _ in range(4)
        )
        self.scheme = SchemeLayer(scheme, config.heads, config.width)

    def forward(self, x: Tensor, call: ForwardPass) -> Tensor:
        """``[B, L, W]`` to the same."""
        plain = query, key = self.queries_and_keys(x)
        value = self._split(self.value(x))
        if call.rotate is not None:
            query, key = call.rotate(query), call.rotate(key)
        query = self.scheme.scale_queries(query, call.layout.tokens)
        if self.scheme.memory is not None:
            out = self._attend_and_retrieve(plain, query, key, value, call)
        else:
            key_bias = self.key_bias(x, call)
            if call.cache is not None:
                key, value, key_bias = call.cache.append(self.layer, key, value, key_bias)
            out = self.attend(query, key, value, call, key_bias)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def _attend_and_retrieve(
        self,
        plain: tuple[Tensor, Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: ForwardPass,
    ) -> Tensor:
        """Attention inside segments, mixed with what `plain` queries retrieve of those before."""
        memory, cache = self.scheme.memory, call.cache
        assert memory is not None
        assert cache is None or isinstance(cache, KeyValueCache)
        segments = call.segments[memory.segment_length]
        state = None if cache is None else cache.memory(self.layer)
        retrieved, state = memory(*plain, value, segments.memory, state)
        if cache is not None:
            key, value = cache.append_segment(self.layer, key, value, segments, state)
        attended = self.attend(*segments.fold(query, key, value), call)
        out: Tensor = memory.mix(retrieved, segments.unfold(attended, query.shape[2]))
        return out

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys ``[B, H, L, D]``, before the scheme changes them."""
        query, key = self._split(self.query(x)), self._split(self.key(x))
        return (rms(query), rms(key)) if self.qk_norm else (query, key)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: ForwardPass,
        key_bias: Tensor | None = None,
    ) -> Tensor:
        """``[B, H, L, D]``, ``[B, H, N, D]`` and ``[B, H, N, D]`` to ``[B, H, L, D]``."""
        visibility, affine = self.layout(call).visibility, self.affine(call, query)
        op = attend if call.shared is None else call.shared.attend
        given = {} if key_bias is None else {"key_bias": key_bias}
        out: Tensor = self.scheme.attend(
            query, key, value, visibility, affine=affine, op=op, backend=call.backend, **given
        )
        return out

    def key_bias(self, x: Tensor, call: ForwardPass) -> Tensor | None:
        """The biases ``[B, H, L]`` of the keys of inputs ``[B, L, W]``; None stands for 0."""
        earlier = None
        if self.scheme.key_bias is not None and call.cache is not None:
            earlier = call.cache.last_bias(self.layer)
        return self.scheme.key_biases(x, call.layout.visibility, earlier)

    def layout(self, call: ForwardPass) -> TokenLayout:
        """The tokens of a call as attention of this layer sees them."""
        memory = self.scheme.memory
        return call.layout if memory is None else call.segments[memory.segment_length].attention

    def affine(self, call: ForwardPass, query: Tensor) -> DistanceAffine | None:
        """Gain and bias for all distances of a call, for queries of this dtype and device.

        None between tokens with coordinates if tau gives the exact ones: tables would be interpolated.
        """
        layout = self.layout(call)
        span = layout.span
        in_space = layout.visibility.key_coordinates is not None
        if in_space and self.scheme.tau(query.device) is not None:
            return None
        # A cache would keep the tables of the longest call, though segments are short.
        if call.cache is None or self.scheme.memory is not None:
            return self.scheme.affine(span, query)
        make = partial(self.scheme.affine, query=query)
        return call.cache.affine(self.layer, span, make)

    def _split(self, x: Tensor) -> Tensor:
        """``[B, L, W]`` to ``[B, H, L, D]``."""
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """Four times wider inside, with a squared ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, W]`` to the same."""
        out: Tensor = self.down(F.relu(self.up(x)).square())
        return out


@torch.no_grad()
def initialise_blocks(blocks: nn.ModuleList) -> None:
    """Initialise all weights of blocks; matrices that write to the residual stream are zero."""
    for module in blocks.modules():
        if isinstance(module, Attention):
            module.scheme.reset_parameters()
    for name, weight in blocks.named_parameters():
        if belongs_to_scheme(name):
            continue
        if name.endswith(("attention.output.weight", "mlp.down.weight")):
            nn.init.zeros_(weight)
        else:
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)


def rms(x: Tensor) -> Tensor:
    """Divide the last dimension by its root mean square."""
    return F.rms_norm(x, x.shape[-1:])
