"""A scheme inside one attention layer: the parameters it learns there, and what it does to logits.

Shapes: B batch, H heads, L queries, N keys, D head_dim.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import DistanceAffine, Visibility
from ..attention.api import attend
from ..attention.numerics import compute_dtype
from ._positions import TokenPositions
from .distance import ScaleInvariantTables
from .key_bias import running_bias
from .scheme import Scheme


class SchemeLayer(nn.Module):
    """Query scale, distance, key bias and memory of a scheme for one layer with `heads` heads.

    `width` is that of the layer's input, which a key bias is computed from. Rotary has no parameters and
    is the same in all layers: see `rotation`.

    >>> from scale_invariant_attention import schemes
    >>> layer = SchemeLayer(schemes.get("scale-invariant-nope"), heads=4)
    >>> query, key, value = torch.randn(3, 1, 4, 100, 16).unbind()
    >>> layer.attend(query, key, value, Visibility(), affine=layer.affine(100, query)).shape
    torch.Size([1, 4, 100, 16])
    """

    def __init__(self, scheme: Scheme, heads: int, width: int | None = None) -> None:
        super().__init__()
        self.scheme = scheme
        self.heads = heads
        self.width = width
        if scheme.key_bias is not None and width is None:
            raise ValueError(
                f"width must be that of the layer's input for {scheme.key_bias}, got None"
            )
        self.query_scale = None if scheme.query_scale is None else scheme.query_scale.build(heads)
        self.distance = scheme.distance.build(heads)
        self.key_bias: nn.Module | None = None
        if scheme.key_bias is not None and width is not None:
            self.key_bias = scheme.key_bias.build(heads, width)
        self.memory = None if scheme.memory is None else scheme.memory.build(heads)

    @torch.no_grad()
    def reset_parameters(self, names: Iterable[str] | None = None) -> None:
        """Set parameters to their initial values: those with these names, by default all."""
        with torch.device("cpu"):
            initial = SchemeLayer(self.scheme, self.heads, self.width).state_dict()
        current = self.state_dict()
        for name in current if names is None else names:
            current[name].copy_(initial[name])

    def query_factors(self, tokens: TokenPositions, dtype: torch.dtype) -> Tensor | None:
        """The factor of each query's logits, broadcast to ``[B, H, L]``; None stands for 1."""
        if self.query_scale is None:
            return None
        factors: Tensor = self.query_scale(tokens).to(dtype)
        return factors

    def scale_queries(self, query: Tensor, tokens: TokenPositions) -> Tensor:
        """Queries ``[B, H, L, D]`` times their factors."""
        factors = self.query_factors(tokens, compute_dtype(query.dtype))
        return query if factors is None else (query * factors.unsqueeze(-1)).to(query.dtype)

    def key_biases(
        self,
        x: Tensor,
        visibility: Visibility,
        earlier: Tensor | None = None,
    ) -> Tensor | None:
        """The biases ``[B, H, L]`` of the keys of inputs ``[B, L, width]``; None stands for 0.

        The last L keys of `visibility` are theirs, and `earlier` is the bias of the key before them,
        ``[B, H, 1]``.
        """
        if self.key_bias is None:
            return None
        mask = visibility.key_mask
        mask = None if mask is None else mask[:, -x.shape[1] :]
        return running_bias(self.key_bias(x), mask, visibility.key_documents, earlier)

    def tau(self, device: torch.device) -> float | Tensor | None:
        """tau of the paper's transform, a number or ``[H]``; None if tau alone is not enough."""
        if isinstance(self.distance, ScaleInvariantTables) and self.distance.is_papers:
            return self.distance.value("tau", device)
        return None

    def affine(self, length: int, query: Tensor) -> DistanceAffine:
        """Gain and bias for `length` distances, for queries of this dtype and device."""
        distance = torch.arange(length, dtype=torch.float64, device=query.device)
        dtype = compute_dtype(query.dtype)
        gain, bias = self.distance(distance)
        return DistanceAffine(gain.to(dtype), bias.to(dtype))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visibility: Visibility,
        *,
        affine: DistanceAffine | None,
        op: Callable[..., Any] = attend,
        **settings: Any,
    ) -> Any:
        """Attention of rotated, scaled queries ``[B, H, L, D]`` to keys and values ``[B, Hk, N, D]``.

        `affine` holds the tables of :meth:`affine`, or is None to compute the transform from
        :meth:`tau`, without tables. `settings` are scale, key_bias, return_lse and backend of `op`,
        which has the arguments of the op. Returns what the op returns: ``[B, H, L, D]``, with
        `return_lse` also the log-sum-exp ``[B, H, L]``.
        """
        tau = self.tau(query.device) if affine is None else None
        if affine is None and tau is None:
            raise ValueError(f"affine must be given for {self.scheme}, which has no tau")
        return op(query, key, value, affine=affine, tau=tau, visibility=visibility, **settings)
