"""Scale-invariant attention: train on short contexts, work on long ones.

>>> import torch
>>> import scale_invariant_attention as sia
>>> query, key, value = torch.randn(3, 1, 8, 256, 64).unbind()
>>> sia.scale_invariant_attention(query, key, value).shape
torch.Size([1, 8, 256, 64])
"""

from importlib.metadata import version

from . import model, schemes, theory
from .attention import (
    DistanceAffine,
    available_backends,
    backend_for,
    distance_affine_attention,
    scale_invariant_attention,
    unavailable_backends,
)

__version__ = version("scale-invariant-attention")

__all__ = [
    "DistanceAffine",
    "__version__",
    "available_backends",
    "backend_for",
    "distance_affine_attention",
    "model",
    "scale_invariant_attention",
    "schemes",
    "theory",
    "unavailable_backends",
]
