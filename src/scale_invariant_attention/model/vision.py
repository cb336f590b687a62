"""A vision transformer of the GPT's blocks: attention between patches, at their Euclidean distance.

x = rms(embedding(patch) + grid[patch]);   x = block(x) for every block;   out = head(rms(x))

Schemes of a GPT have counterparts in the plane. Gain and bias are those of the Euclidean distance
between patches, with the transform for two dimensions; frequencies rotate one half of a head by the row
of a patch, and the other half by its column. The grid is learned, or absent.

Shapes: B batch, R rows and C columns of patches, N = R C patches, P pixels of a patch, W width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, hypot
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import schemes
from ..arguments import integer
from ..attention import Visibility
from ..attention.numerics import compute_dtype
from ..schemes import Scheme, TokenPositions, axial_rotation
from ..schemes.distance import ScaleInvariant
from .block import Block, ForwardPass, check_backend, initialise_blocks, rms
from .inputs import TokenLayout

# Slots that depend on the order of tokens.
SEQUENTIAL_SLOTS = ("key_bias", "memory")


@dataclass(frozen=True)
class VisionConfig:
    """Sizes and scheme of a vision transformer for grey images of any size.

    With `classes` it classifies an image, by the largest value of each feature over the patches, which
    further patches do not dilute as they would a mean; without, it predicts the pixels of hidden
    patches. `patch` is the side of a patch in pixels. A `grid` adds a learned embedding per patch of a
    square of this side, which is interpolated for images of other sizes.

    >>> VisionConfig(scheme_name="rope", classes=10).head_dim
    24
    """

    scheme_name: str = "scale-invariant-p-rope"
    scheme_options: Mapping[str, Any] = field(default_factory=dict)
    patch: int = 4
    layers: int = 3
    width: int = 96
    heads: int = 4
    classes: int | None = None
    grid: int | None = None
    qk_norm: bool = True

    def __post_init__(self) -> None:
        for name in ("patch", "layers", "width", "heads", "classes", "grid"):
            if getattr(self, name) is not None or name not in ("classes", "grid"):
                integer(name, getattr(self, name), at_least=1)
        if not isinstance(self.qk_norm, bool):
            raise TypeError(f"qk_norm must be True or False, got {self.qk_norm!r}")
        if not isinstance(self.scheme_options, Mapping):
            raise TypeError(f"scheme_options must be a dict, got {self.scheme_options!r}")
        # Neither a default nor the caller's own dict, which may change.
        object.__setattr__(self, "scheme_options", dict(self.scheme_options))
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width={self.width} and heads={self.heads}"
            )
        scheme = self.scheme
        for slot in SEQUENTIAL_SLOTS:
            if getattr(scheme, slot) is not None:
                raise ValueError(
                    f"scheme_name must name a scheme without a {slot}, which has no meaning between "
                    f"patches, got {self.scheme_name!r}"
                )
        if scheme.rotary is not None:
            if scheme.rotary.depends_on_context:
                raise ValueError(
                    f"scheme_name must name a scheme whose frequencies are the same for all sizes, got "
                    f"{self.scheme_name!r}"
                )
            axial_rotation(scheme.rotary, torch.zeros(1, 2), self.head_dim, torch.float32)
        distance = scheme.distance
        if isinstance(distance, ScaleInvariant) and not distance.build(self.heads).is_papers:
            raise ValueError(
                f"scheme_options must leave the transform whole, which has two dimensions in the plane "
                f"for any tau but not for other sigma, mu or without, got {self.scheme_options}"
            )

    @property
    def head_dim(self) -> int:
        """Dimensions per head."""
        return self.width // self.heads

    @property
    def scheme(self) -> Scheme:
        """The scheme of all layers, with its options."""
        scheme = schemes.get(self.scheme_name, **self.scheme_options)
        if not isinstance(scheme, Scheme):
            raise ValueError(
                f"scheme_name must name one scheme for all layers, got {self.scheme_name!r}"
            )
        return scheme


class VisionTransformer(nn.Module):
    """A vision transformer with a scheme for the plane.

    Args:
        config: sizes and scheme.
        backend: the backend of attention: "auto", or one of ``available_backends(device)``.

    >>> model = VisionTransformer(VisionConfig(classes=10))
    >>> model(torch.zeros(2, 24, 32)).shape
    torch.Size([2, 10])
    >>> model = VisionTransformer(VisionConfig(patch=8))
    >>> hidden = torch.rand(2, 12) < 0.5
    >>> model(torch.zeros(2, 24, 32), hidden).shape
    torch.Size([2, 12, 64])
    """

    def __init__(self, config: VisionConfig, *, backend: str = "auto") -> None:
        super().__init__()
        check_backend(backend)
        self.config = config
        self.backend = backend
        pixels = config.patch**2
        self.embedding = nn.Linear(pixels, config.width)
        self.mask = nn.Parameter(torch.empty(config.width))
        self.grid: nn.Parameter | None = None
        if config.grid is not None:
            self.grid = nn.Parameter(torch.empty(config.width, config.grid, config.grid))
        self.blocks = nn.ModuleList(
            Block(config, config.scheme, layer) for layer in range(config.layers)
        )
        self.head = nn.Linear(config.width, config.classes or pixels)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise all weights: the blocks as a GPT's, and the head with zeros."""
        self.embedding.reset_parameters()
        for parameter in (self.mask, self.grid):
            if parameter is not None:
                nn.init.normal_(parameter, std=0.02)
        initialise_blocks(self.blocks)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The logits ``[B, classes]`` of images ``[B, height, width]``, or pixels ``[B, N, P]``.

        `hidden` is bool ``[B, N]``, True for patches that the model does not see, row by row.
        """
        patches, rows, columns = to_patches(images, self.config.patch)
        x = self.embedding(patches)
        if hidden is not None:
            if hidden.shape != patches.shape[:2] or hidden.dtype != torch.bool:
                raise ValueError(
                    f"hidden must be bool {list(patches.shape[:2])}, one per patch, got "
                    f"{hidden.dtype} of shape {list(hidden.shape)}"
                )
            x = torch.where(hidden.unsqueeze(-1), self.mask.to(x.dtype), x)
        if self.grid is not None:
            x = x + self._grid_for(rows, columns).to(x.dtype)
        x, call = rms(x), self._forward_pass(rows, columns, x)
        for block in self.blocks:
            x = block(x, call)
        x = rms(x)
        out: Tensor = self.head(x if self.config.classes is None else x.amax(1))
        return out

    def _grid_for(self, rows: int, columns: int) -> Tensor:
        """The embeddings of patches ``[N, W]``, interpolated for other sizes than the grid's."""
        assert self.grid is not None
        grid = self.grid.unsqueeze(0)
        if (rows, columns) != grid.shape[2:]:
            grid = F.interpolate(grid, (rows, columns), mode="bicubic", align_corners=False)
        return grid[0].flatten(1).T

    def _forward_pass(self, rows: int, columns: int, x: Tensor) -> ForwardPass:
        """Everything that layers share for images of this size."""
        scheme, count = self.config.scheme, rows * columns
        axes = (torch.arange(size, device=x.device) for size in (rows, columns))
        coordinates = torch.cartesian_prod(*axes)
        visibility = Visibility(key_coordinates=coordinates, is_causal=False, window=scheme.window)
        tokens = TokenPositions(torch.arange(count, device=x.device), count, is_causal=False)
        span = ceil(hypot(rows - 1, columns - 1)) + 1
        rotate = None
        if scheme.rotary is not None:
            dtype = compute_dtype(x.dtype)
            rotate = axial_rotation(scheme.rotary, coordinates, self.config.head_dim, dtype)
        return ForwardPass(TokenLayout(tokens, visibility, span), rotate, None, self.backend)


def to_patches(images: Tensor, patch: int) -> tuple[Tensor, int, int]:
    """Patches ``[B, N, P]`` of images ``[B, height, width]``, row by row, and their rows and columns.

    >>> patches, rows, columns = to_patches(torch.arange(24.0).view(1, 4, 6), patch=2)
    >>> patches[0, 1].tolist(), rows, columns
    ([2.0, 3.0, 8.0, 9.0], 2, 3)
    """
    if images.ndim != 3 or not images.is_floating_point():
        raise ValueError(
            f"images must be floating [batch, height, width], got {images.dtype} of shape "
            f"{list(images.shape)}"
        )
    batch, height, width = images.shape
    if not height or not width or height % patch or width % patch:
        raise ValueError(
            f"images must have sides that are multiples of the patch of {patch} pixels, got "
            f"{height} x {width}"
        )
    rows, columns = height // patch, width // patch
    patches = images.reshape(batch, rows, patch, columns, patch).transpose(2, 3)
    return patches.reshape(batch, rows * columns, patch**2), rows, columns
