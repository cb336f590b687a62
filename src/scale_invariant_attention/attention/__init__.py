"""The op: attention with a gain and a bias by distance, on several backends."""

from ._affine import DistanceAffine
from .api import backend_for, distance_affine_attention, scale_invariant_attention
from .backends import available_backends, run_self_checks, unavailable_backends
from .visibility import Visibility

__all__ = [
    "DistanceAffine",
    "Visibility",
    "available_backends",
    "backend_for",
    "distance_affine_attention",
    "run_self_checks",
    "scale_invariant_attention",
    "unavailable_backends",
]
