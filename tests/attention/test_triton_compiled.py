"""The Triton kernels compiled for absent GPUs: spills, shared memory, instructions, a model of cost."""

import sys
from importlib.util import find_spec

import pytest
import torch

if sys.platform != "linux" or find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

import compiled_kernels
from triton_instructions import (
    EVERY,
    MARKS,
    PAGE,
    SOME,
    VERSION,
    measured,
    ratios,
    recorded,
    table,
)

from scale_invariant_attention.attention import _affine, _triton_plan, contract

# Modelled clocks over those of the plain kernel: overlapping, in turn.
TARGETS = {
    ("forward", 64): (1.25, 1.20),
    ("forward", 128): (1.05, 1.15),
    ("backward", 128): (1.05, 1.15),
}


def faults(rows):
    """Problems of compiled kernels."""
    record = {row.job: row for row in recorded()}
    found = []
    for row in rows:
        # Nobody runs the yardstick: it may spill what its record says, and the model counts it.
        if row.local > (record[row.job].local if row.variant == "plain" else 0):
            found.append(f"{row.job}: {row.local} loads and stores of spilled registers")
        if row.shared > compiled_kernels.ALLOWED[row.target]:
            found.append(f"{row.job}: {row.shared} bytes of shared memory")
        ceiling = record[row.job].instructions
        if row.triton == VERSION and row.instructions > ceiling:
            found.append(f"{row.job}: {row.instructions} instructions, {ceiling} recorded")
    return found


@pytest.mark.long
def test_some_kernels():
    rows = measured(SOME)
    assert not faults(rows)
    if rows[0].triton == VERSION:
        assert ratios(rows) == ratios(recorded())


@pytest.mark.slow
def test_the_other_kernels():
    assert not faults(measured([job for job in EVERY if job not in SOME]))


@pytest.mark.parametrize("key_bias", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_amd(size, key_bias):
    for launch in compiled_kernels.launches("gfx942", size, tau_grads=True, key_bias=key_bias):
        compiled = compiled_kernels.compiled(launch, "gfx942")
        assert compiled.shared <= compiled_kernels.ALLOWED["gfx942"]
        assert compiled.stack == 0, f"{launch.name} spills"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [512, 1])
def test_the_largest_heads(dtype, queries):
    for launch in compiled_kernels.launches("sm_80", 256, dtype=dtype, queries=queries):
        compiled = compiled_kernels.compiled(launch, "sm_80")
        assert compiled.shared <= compiled_kernels.ALLOWED["sm_80"]
        # With so few, the compiler keeps almost everything in memory.
        assert compiled.registers > 32 or compiled.stack == 0, f"{launch.name} spills"


@pytest.mark.parametrize("size", [64, 128])
def test_smaller_gpus_have_enough_shared_memory(size):
    """Consumer cards have less of it, and run the same tiles: with all options at once."""
    options = {"documents": True, "key_mask": True, "key_bias": True, "window": 300, "sinks": 4}
    for launch in compiled_kernels.launches("sm_80", size, positions=True, **options):
        shared = compiled_kernels.binary_of(launch, "sm_80").metadata.shared
        assert shared <= compiled_kernels.ALLOWED["sm_80"], launch.name


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_factors_of_tf32_are_rounded_not_cut(target, monkeypatch):
    monkeypatch.setattr(_triton_plan, "allows_tf32", lambda: True)
    launches = compiled_kernels.launches(target, 64, dtype=torch.float32)
    multiplying = [it for it in launches if "PRECISION" in it.arguments]
    assert {it.name for it in multiplying} == {"forward", "key_gradients", "query_gradients"}
    for launch in multiplying:
        ptx = compiled_kernels.binary_of(launch, target).asm["ptx"]
        assert ".tf32.tf32" in ptx
        assert "cvt.rna.tf32.f32" in ptx, launch.name


def test_gpus_without_tf32_multiply_in_full_precision(monkeypatch):
    monkeypatch.setattr(_triton_plan, "allows_tf32", lambda: True)
    for launch in compiled_kernels.launches("sm_75", 64, dtype=torch.float32):
        ptx = compiled_kernels.binary_of(launch, "sm_75").asm["ptx"]
        assert "tf32" not in ptx, launch.name


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("kind", "size"), TARGETS)
def test_recorded_ratios_meet_their_targets(target, kind, size):
    found, allowed = ratios(recorded())[target, kind, size], TARGETS[kind, size]
    assert found[0] <= allowed[0]
    assert found[1] <= allowed[1]


def test_every_kernel_is_recorded_without_spills():
    rows = recorded()
    assert [row.job for row in rows] == EVERY
    assert not [row for row in rows if row.local and row.variant != "plain"]


def test_the_page_shows_the_record():
    before, after = MARKS
    page = PAGE.read_text()
    assert (
        page[page.index(before) + len(before) : page.index(after)].strip()
        == table(recorded()).strip()
    )


def keys_of(**call):
    """Keys of the kernels that Triton would compile for a call: types and constants of arguments."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.jit import create_function_from_signature

    backend = CUDABackend(compiled_kernels.TARGETS["sm_90"][0])
    found = set()
    for launch in compiled_kernels.launches("sm_90", **call):
        kernel = launch.kernel
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialization, options = bind(**launch.arguments)
        found.add((launch.name, str(specialization), str(options)))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"tau_grads": True},
        {"tables": True},
        {"tables": True, "positions": True},
        {"documents": True, "key_mask": True, "window": 70, "sinks": 3},
        {"key_bias": True},
        {"key_bias": True, "queries": 3},
        {"queries": 3},
    ],
    ids=str,
)
def test_no_call_waits_for_the_gpu(settings, monkeypatch):
    # Reading a value of a meta tensor raises. The checks of values run nevertheless, as on a GPU.
    for module in (contract, _affine):
        monkeypatch.setattr(module, "holds_values", lambda tensor: True)
    assert compiled_kernels.launches("sm_90", 64, device="meta", **settings)
    with pytest.raises(RuntimeError, match="meta"):
        torch.zeros(1, device="meta").item()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window": 70},
        {"is_causal": False},
        {"tables": True},
        {"sinks": 3},
        {"size": 40},
        {"key_bias": True},
    ],
    ids=str,
)
def test_lengths_offsets_tau_and_scale_compile_nothing_new(settings):
    settings = {"size": 64, "tau_grads": True, **settings}
    expected = keys_of(queries=512, keys=512, **settings)
    assert len(expected) >= 6
    for queries, keys in ((511, 512), (64, 1000), (129, 129), (100, 17), (333, 4096)):
        assert keys_of(queries=queries, keys=keys, **settings) == expected
    for scale in (1.0, -0.3):
        assert keys_of(queries=100, keys=300, scale=scale, tau=17.0, **settings) == expected
    if "window" in settings:
        assert keys_of(queries=100, keys=300, **{**settings, "window": 1}) == expected


def test_derivatives_by_tau_are_computed_only_for_its_gradient():
    def lines(**settings):
        found = compiled_kernels.launches("sm_90", 64, **settings)
        return [launch.arguments["SLOPES"] for launch in found if launch.name == "line"]

    assert lines() == [False, False]
    assert lines(tau_grads=True) == [False, True]


def test_decoding_compiles_nothing_new_as_the_cache_grows():
    expected = keys_of(size=64, queries=1, keys=1000)
    for keys in (1, 16, 1001, 1024, 70000):
        assert keys_of(size=64, queries=1, keys=keys) == expected
