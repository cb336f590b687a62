"""The package's public names load on first use, and look as if they had been imported."""

import subprocess
import sys

import pytest
import torch

import scale_invariant_attention as sia


def output_of(script):
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_does_not_import_torch():
    script = "import sys, scale_invariant_attention; print('torch' in sys.modules)"
    assert output_of(script) == "False"


def test_every_public_name_is_there_and_is_listed():
    for name in sia.__all__:
        assert getattr(sia, name) is not None
        assert name in dir(sia)
    assert sia.scale_invariant_attention is sia.attention.scale_invariant_attention


def test_a_star_import_gives_every_public_name_and_keeps_it():
    script = (
        "import scale_invariant_attention as sia; before = set(vars(sia)); "
        "from scale_invariant_attention import *; "
        "print('theory' in before, set(sia.__all__) - set(globals()), set(sia.__all__) - set(vars(sia)))"
    )
    assert output_of(script) == "False set() set()"


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'scale_invariant'"):
        _ = sia.scale_invariant
    with pytest.raises(ImportError):
        from scale_invariant_attention import nothing  # noqa: F401


def test_a_compiled_function_may_be_the_first_to_use_a_name(monkeypatch):
    monkeypatch.delitem(vars(sia), "scale_invariant_attention", raising=False)

    @torch.compile(backend="eager")
    def attend(*inputs):
        return sia.scale_invariant_attention(*inputs)

    assert attend(*torch.ones(3, 1, 1, 4, 8)).shape == (1, 1, 4, 8)
