"""The backends that take whole contracts, as parameters of tests."""

import pytest

import scale_invariant_attention as sia

MISSING = sia.unavailable_backends("cpu").get("cpu")
needs_kernels = pytest.mark.skipif(MISSING is not None, reason=f"no compiled kernels: {MISSING}")
CPU = pytest.param("cpu", marks=needs_kernels)
WHOLE = ["reference", "tiled", CPU]
