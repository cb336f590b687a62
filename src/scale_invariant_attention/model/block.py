"""One block of the GPT: attention with a scheme, and an MLP.

Shapes: B batch, L tokens, N keys, W width, H heads, D head_dim.
"""

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import DistanceAffine
from ..attention.api import attend
from ..schemes import Scheme, SchemeLayer
from ..schemes.rotary import Rotation
from ._cache import LayerCache
from .config import GPTConfig
from .context_parallel import SharedRows
from .inputs import TokenLayout


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Everything that layers with equal schemes share in one call of the model."""

    layout: TokenLayout
    rotate: Rotation | None
    cache: LayerCache | None
    backend: str
    shared: SharedRows | None = None


class Block(nn.Module):
    """``x + attention(rms(x))``, then ``x + mlp(rms(x))``."""

    def __init__(self, config: GPTConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, scheme, layer)
        self.mlp = MLP(config.width)

    def forward(self, x: Tensor, call: ForwardPass) -> Tensor:
        """``[B, L, W]`` to the same."""
        attended: Tensor = x + self.attention(rms(x), call)
        out: Tensor = attended + self.mlp(rms(attended))
        return out


class Attention(nn.Module):
    """Causal self-attention with a position scheme."""

    def __init__(self, config: GPTConfig, scheme: Scheme, layer: int) -> None:
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
        query, key = self.queries_and_keys(x)
        value = self._split(self.value(x))
        if call.rotate is not None:
            query, key = call.rotate(query), call.rotate(key)
        query = self.scheme.scale_queries(query, call.layout.tokens)
        key_bias = self.key_bias(x, call)
        if call.cache is not None:
            key, value, key_bias = call.cache.append(self.layer, key, value, key_bias)
        out = self.attend(query, key, value, call, key_bias)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

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
        visibility, affine = call.layout.visibility, self.affine(call, query)
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

    def affine(self, call: ForwardPass, query: Tensor) -> DistanceAffine:
        """Gain and bias for all distances of a call, for queries of this dtype and device."""
        if call.cache is None:
            return self.scheme.affine(call.layout.span, query)
        make = partial(self.scheme.affine, query=query)
        return call.cache.affine(self.layer, call.layout.span, make)

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


def rms(x: Tensor) -> Tensor:
    """Divide the last dimension by its root mean square."""
    return F.rms_norm(x, x.shape[-1:])
