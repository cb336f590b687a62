import json
import re
from dataclasses import replace
from importlib.metadata import metadata

import pytest
import torch
from typer.testing import CliRunner

from scale_invariant_attention.attention import cpu_library, reference, self_check, tiled, trust
from scale_invariant_attention.attention._self_check_contracts import CONTRACTS
from scale_invariant_attention.attention.backends import BACKENDS, Backend
from scale_invariant_attention.cli import app
from scale_invariant_attention.lab import doctor as check_up

REASON = "it needs a compiler, a driver, a licence and more patience than this machine has to give"


@pytest.fixture(autouse=True)
def absent_flex(monkeypatch):
    install(monkeypatch, "flex", unavailable_reason=lambda _: REASON)


def install(monkeypatch, name, **changes):
    monkeypatch.setitem(BACKENDS, name, replace(BACKENDS[name], **changes))


def doctor(*options):
    return CliRunner().invoke(app, ["doctor", *options])


def row(run, backend):
    (found,) = (line for line in run.output.splitlines() if f" {backend} " in line)
    return found


def test_every_backend_is_listed_and_an_unavailable_one_says_why():
    run = doctor()
    assert run.exit_code == 0
    for backend in ("reference", "tiled"):
        assert "OK: max error" in row(run, backend)
    assert all(name in run.output for name in BACKENDS)
    assert REASON in row(run, "flex")


def test_versions_and_hardware_are_shown():
    run = doctor()
    assert torch.__version__ in run.output
    assert f"torch threads: {torch.get_num_threads()}" in run.output
    assert torch.backends.cpu.get_cpu_capability() in run.output


def test_optional_packages_are_listed_with_their_versions_or_how_to_install_them(monkeypatch):
    versions = {"matplotlib": "3.11.0"}
    monkeypatch.setattr(check_up, "installed_version", versions.get)
    lines = doctor().output.splitlines()
    assert ["matplotlib", "3.11.0"] in [line.split() for line in lines]
    (line,) = (line for line in lines if line.startswith("transformers"))
    assert 'no: pip install "scale-invariant-attention[huggingface]"' in line
    # On a terminal of 80 columns, the command can be copied.
    assert len(line.rstrip()) < 80
    optional = json.loads(doctor("--json").output)["optional"]
    assert optional["matplotlib"] == "3.11.0"
    assert optional["peft"] is None


def test_extras_of_optional_packages_exist():
    known = metadata("scale-invariant-attention").get_all("Provides-Extra")
    named = {extra for it in check_up.OPTIONAL.values() for extra in re.findall(r"\[(.*)\]", it)}
    assert named
    assert named <= set(known)


def test_kernels_are_listed_with_the_instruction_set_in_use(monkeypatch):
    compiled = {"avx512": False, "avx2": True, "portable": True}
    monkeypatch.setattr(cpu_library, "instruction_set", lambda: "avx2")
    monkeypatch.setattr(cpu_library, "instruction_sets", lambda: compiled)
    assert "avx2 in use; compiled for avx512 (not on this CPU), avx2, portable" in doctor().output
    report = json.loads(doctor("--json").output)
    assert report["kernels"] == {"uses": "avx2", "compiled": compiled}


def test_without_a_library_there_are_no_kernels(monkeypatch):
    monkeypatch.setattr(cpu_library, "LIBRARY", None)
    (line,) = (line for line in doctor().output.splitlines() if line.startswith("kernels"))
    assert line.split() == ["kernels", "none"]
    report = json.loads(doctor("--json").output)
    assert report["kernels"] == {"uses": None, "compiled": {}}


def test_json_says_the_same():
    run = doctor("--json")
    report = json.loads(run.output)
    assert run.exit_code == 0
    assert report["ok"]
    assert report["versions"]["torch"] == torch.__version__
    checks = {check["backend"]: check for check in report["backends"]}
    assert set(checks) == set(BACKENDS)
    assert checks["flex"]["unavailable_reason"] == REASON
    assert checks["tiled"]["passed"]
    assert checks["tiled"]["error"] <= checks["tiled"]["allowed"]


def slightly_wrong(call, _):
    out, lse = reference.attention(call)
    return out + 1e-4, lse


def not_a_number(call, _):
    out, lse = reference.attention(call)
    return out * torch.nan, lse


def broken(*_):
    raise RuntimeError("the kernel [v2] did not load")


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (slightly_wrong, "FAILED: max error 1.0e-04"),
        (not_a_number, "FAILED: FloatingPointError: the output is not finite"),
        (broken, "FAILED: RuntimeError: the kernel [v2] did not load"),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_a_wrong_backend_fails_the_self_check(monkeypatch, backend, attention, said):
    install(monkeypatch, backend, attention=attention)
    run = doctor()
    assert run.exit_code == 1
    assert said in row(run, backend)


@pytest.mark.parametrize("attention", [slightly_wrong, not_a_number, broken])
def test_json_reports_a_wrong_backend(monkeypatch, attention):
    install(monkeypatch, "tiled", attention=attention)
    run = doctor("--json")
    assert run.exit_code == 1
    # Strictly JSON, which has no NaN.
    report = json.loads(run.output, parse_constant=pytest.fail)
    assert not report["ok"]
    assert [c["backend"] for c in report["backends"] if c["passed"] is False] == ["tiled"]


def test_backends_that_compile_are_checked_only_on_request(monkeypatch):
    calls = []

    def counted(call, _):
        calls.append(call)
        return reference.attention(call)

    install(monkeypatch, "flex", attention=counted, unavailable_reason=lambda _: None)
    assert "add --compile" in row(doctor(), "flex")
    assert not calls
    assert "OK: max error" in row(doctor("--compile"), "flex")
    assert len(calls) == 1


def test_what_the_system_does_not_report_is_unknown(monkeypatch):
    monkeypatch.setattr(check_up, "cpu_information", dict)
    monkeypatch.setattr(check_up, "_memory_bytes", lambda: None)
    monkeypatch.setattr(check_up, "_cores", lambda: None)
    monkeypatch.setattr(check_up.platform, "processor", str)
    run = doctor()
    assert run.exit_code == 0
    assert run.output.count("unknown") == 4


def test_a_gpu_is_described(monkeypatch):
    gpu = check_up.Gpu("Some GPU", 80 * 2**30, "9.0")
    monkeypatch.setattr(check_up, "_gpus", lambda: [gpu])
    for name in BACKENDS:
        install(monkeypatch, name, unavailable_reason=lambda _: REASON)
    run = doctor()
    assert "Some GPU, 80.0 GiB, compute capability 9.0" in run.output
    assert run.output.count("cuda ") == len(BACKENDS)


@pytest.fixture
def new_kernel(monkeypatch, tmp_path):
    """A function that registers a backend which needs a self-check, of two contracts."""
    run, short = self_check.check, (CONTRACTS[0], CONTRACTS[2])
    monkeypatch.setattr(trust, "check", lambda *where: run(*where, short))
    monkeypatch.setattr(trust, "OUTCOMES", trust.Outcomes())
    monkeypatch.setattr(trust, "cache_folder", lambda: tmp_path)

    def register(attention):
        backend = Backend("new", attention, needs_self_check=True)
        monkeypatch.setitem(BACKENDS, "new", backend)

    return register


def test_self_checks_run_fresh_and_are_recorded(new_kernel, tmp_path):
    calls = []

    def counted(call, _):
        calls.append(call)
        return tiled.attention(call)

    new_kernel(counted)
    for _ in range(2):
        before = len(calls)
        run = doctor()
        assert run.exit_code == 0
        assert "OK; closest to its budget: " in run.output
        assert len(calls) - before == 4  # the formula, and two contracts, one in two dtypes
    assert len(list(tmp_path.iterdir())) == 1
    (outcome,) = json.loads(doctor("--json").output)["self_checks"]
    assert (outcome["device"], outcome["backend"], outcome["passed"]) == ("cpu", "new", True)
    assert outcome["float32_precision"] == "ieee"


def without_window(call, _):
    return tiled.attention(replace(call, visibility=replace(call.visibility, window=None)))


def not_a_number_with_a_window(call, _):
    out, lse = tiled.attention(call)
    return (out if call.visibility.window is None else out * torch.nan), lse


@pytest.mark.parametrize("attention", [without_window, not_a_number_with_a_window])
def test_a_failed_self_check_shows_what_differs(new_kernel, attention):
    new_kernel(attention)
    run = doctor()
    assert run.exit_code == 1
    assert "FAILED: window, bfloat16: output errs by" in run.output
    assert "new: window, bfloat16: gradient of key errs by" in run.output
    run = doctor("--json")
    assert run.exit_code == 1
    report = json.loads(run.output, parse_constant=pytest.fail)
    assert not report["ok"]
    (outcome,) = report["self_checks"]
    assert not outcome["passed"]
    assert outcome["differences"][0]["contract"] == "window"


def test_without_such_backends_there_is_no_such_section():
    assert "Self-check, forward" not in doctor().output
