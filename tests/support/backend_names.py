"""Backends that support every contract, as test parameters."""

import pytest

import scale_invariant_attention as sia

MISSING = sia.unavailable_backends("cpu").get("cpu")
needs_kernels = pytest.mark.skipif(MISSING is not None, reason=f"no compiled kernels: {MISSING}")
CPU = pytest.param("cpu", marks=needs_kernels)
WHOLE = ["reference", "tiled", CPU]
