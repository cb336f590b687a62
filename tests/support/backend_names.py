"""Backends that support every contract, as test parameters."""

import moved_backends
import pytest

import scale_invariant_attention as sia

MISSING = sia.unavailable_backends("cpu").get("cpu")
needs_kernels = pytest.mark.skipif(MISSING is not None, reason=f"no compiled kernels: {MISSING}")
CPU = pytest.param("cpu", marks=needs_kernels)
MOVED = moved_backends.installed()
WHOLE = ["reference", "tiled", CPU, *MOVED]


def takes_float64(backend: str) -> bool:
    """Whether a backend of :data:`WHOLE` supports float64."""
    return backend.partition(moved_backends.ON)[0] in ("reference", "tiled")
