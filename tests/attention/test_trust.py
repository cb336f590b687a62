"""Trust on first use: "auto" checks a backend once, remembers, warns and falls back."""

import json
import os
import threading
import warnings
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import scale_invariant_attention as sia
from scale_invariant_attention.attention import backends, self_check, tiled, trust
from scale_invariant_attention.attention.backends import Backend

CPU = torch.device("cpu")


class Kernel:
    """A backend for CPUs that counts its calls, and scales its output by a factor."""

    def __init__(self, factor=1.0):
        self.factor, self.calls = factor, 0

    def __call__(self, call, _):
        self.calls += 1
        out, lse = tiled.attention(call)
        return out * self.factor, lse

    def as_backend(self):
        return Backend("new", self, auto_on=("cpu",), needs_self_check=True)


@pytest.fixture(autouse=True)
def one_contract(monkeypatch):
    """A check of one contract, in milliseconds."""
    run = self_check.check
    monkeypatch.setattr(trust, "check", lambda *where: run(*where, self_check.CONTRACTS[:1]))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A cache folder for each test."""
    monkeypatch.setattr(trust, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def install(monkeypatch):
    """A function that makes a kernel the first choice of "auto", as in a process of its own."""

    def new_process(kernel):
        monkeypatch.setattr(trust, "OUTCOMES", trust.Outcomes())
        first = {"new": kernel.as_backend()}
        monkeypatch.setattr(backends, "BACKENDS", first | backends.BACKENDS | first)
        return kernel

    return new_process


@pytest.fixture
def query():
    return torch.randn(1, 2, 8, 4)


def chosen(query, **settings):
    return sia.backend_for(query, query, query, **settings)


def test_a_right_kernel_is_checked_once_and_taken(install, query):
    kernel = install(Kernel())
    assert chosen(query) == "new"
    checking = kernel.calls
    assert checking == 2  # float32 and bfloat16
    for _ in range(3):
        sia.scale_invariant_attention(query, query, query)
    assert kernel.calls == checking + 3


def test_a_broken_kernel_is_refused_with_a_warning_and_auto_takes_the_next(install, query):
    install(Kernel(1.01))
    with pytest.warns(RuntimeWarning) as caught:
        out = sia.scale_invariant_attention(query, query, query)
    (warning,) = caught
    message = str(warning.message)
    assert "'new' failed its self-check on cpu" in message
    assert "causal, float32: output errs by" in message
    assert "allowed is" in message
    assert "sia doctor --json" in message
    expected = sia.scale_invariant_attention(query, query, query, backend="tiled")
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen(query) in ("cpu", "tiled")


def test_a_broken_kernel_still_runs_by_name(install, query):
    install(Kernel(1.01))
    out = sia.scale_invariant_attention(query, query, query, backend="new")
    expected = sia.scale_invariant_attention(query, query, query, backend="tiled")
    torch.testing.assert_close(out, expected * 1.01)


def test_a_backend_that_does_not_support_the_call_is_not_even_checked(install, query, monkeypatch):
    kernel = install(Kernel())
    declining = replace(kernel.as_backend(), unsupported_reason=lambda *_: "not today")
    monkeypatch.setitem(backends.BACKENDS, "new", declining)
    assert chosen(query) in ("cpu", "tiled")
    assert kernel.calls == 0


def test_a_later_process_reads_the_outcome(install, query, folder):
    install(Kernel())
    assert chosen(query) == "new"
    (path,) = folder.iterdir()
    later = install(Kernel())
    assert chosen(query) == "new"
    assert later.calls == 0
    assert list(folder.iterdir()) == [path]


def test_a_later_process_warns_of_an_earlier_failure(install, query):
    install(Kernel(1.01))
    with pytest.warns(RuntimeWarning, match="failed its self-check"):
        chosen(query)
    later = install(Kernel(1.01))
    with pytest.warns(RuntimeWarning, match="output errs by"):
        assert chosen(query) in ("cpu", "tiled")
    assert later.calls == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "another GPU"},
        {"package_version": "9.9"},
        {"sources": "changed"},
        {"triton_version": "9.9"},
        {"torch_version": "9.9"},
        {"float32_precision": "tf32"},
    ],
    ids=str,
)
def test_an_outcome_of_other_versions_or_devices_does_not_count(install, query, folder, changes):
    install(Kernel())
    chosen(query)
    (path,) = folder.iterdir()
    subject = trust.Subject.of(backends.BACKENDS["new"], CPU)
    other = replace(subject, **changes)
    assert trust.read_outcome(subject).passed
    assert trust.read_outcome(other) is None
    # Nor under the name of this one.
    document = json.loads(path.read_text())
    document["subject"] |= changes
    path.write_text(json.dumps(document))
    assert trust.read_outcome(subject) is None


def damaged(text):
    document = json.loads(text)
    yield ""
    yield text[: len(text) // 2]
    yield "[]"
    yield "null"
    yield json.dumps({"subject": document["subject"]})
    yield json.dumps(document | {"outcome": {}})
    yield json.dumps(document | {"outcome": None})
    yield json.dumps(document | {"outcome": document["outcome"] | {"differences": [1]}})


def test_a_damaged_file_is_ignored_and_replaced(install, query, folder):
    install(Kernel())
    chosen(query)
    (path,) = folder.iterdir()
    right = path.read_text()
    for text in damaged(right):
        path.write_text(text)
        kernel = install(Kernel())
        assert chosen(query) == "new"
        assert kernel.calls == 2
        assert json.loads(path.read_text())["subject"] == json.loads(right)["subject"]
    path.write_bytes(b"\xff\xfe")
    assert trust.read_outcome(trust.Subject.of(backends.BACKENDS["new"], CPU)) is None


def test_an_exception_counts_for_processes_that_start_together_only(install, query, folder):
    def full(call, _):
        raise torch.OutOfMemoryError("no room")

    install(full_kernel := Kernel())
    backends.BACKENDS["new"] = replace(full_kernel.as_backend(), attention=full)
    with pytest.warns(RuntimeWarning, match="OutOfMemoryError: no room"):
        assert chosen(query) in ("cpu", "tiled")
    together = install(Kernel())
    with pytest.warns(RuntimeWarning, match="OutOfMemoryError: no room"):
        assert chosen(query) in ("cpu", "tiled")
    assert together.calls == 0
    (path,) = folder.iterdir()
    before = path.stat().st_mtime - trust.PROBLEM_SECONDS - 1
    os.utime(path, (before, before))
    install(Kernel())
    assert chosen(query) == "new"


def test_another_precision_of_products_is_checked_on_its_own(install, query, monkeypatch):
    kernel = install(Kernel())
    assert chosen(query) == "new"
    monkeypatch.setattr(trust, "float32_precision", lambda: "tf32")
    kernel.factor = 1.01
    with pytest.warns(RuntimeWarning, match="failed its self-check"):
        assert chosen(query) in ("cpu", "tiled")
    assert kernel.calls == 4
    monkeypatch.undo()
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def test_a_folder_that_cannot_be_written_is_tolerated(install, query, folder, monkeypatch):
    folder.write_text("a file where the folder should be")
    kernel = install(Kernel())
    assert chosen(query) == "new"
    chosen(query)
    assert kernel.calls == 2
    monkeypatch.setattr(trust, "cache_folder", lambda: None)
    install(Kernel())
    assert chosen(query) == "new"


def test_threads_wait_for_one_check(install, query):
    kernel = install(Kernel())
    threads = [threading.Thread(target=chosen, args=(query,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.calls == 2


def test_no_check_runs_with_fake_or_traced_tensors(install, query):
    kernel = install(Kernel())
    with FakeTensorMode() as mode:
        assert chosen(mode.from_tensor(query)) in ("cpu", "tiled")
    assert chosen(query.to("meta")) == "tiled"
    torch.func.vmap(lambda one: (chosen(one), one)[1])(query.expand(3, -1, -1, -1, -1))
    torch.fx.experimental.proxy_tensor.make_fx(lambda one: (chosen(one), one)[1])(query)
    assert kernel.calls == 0


def test_a_compiled_call_relies_on_earlier_outcomes_alone(install, query):
    def attend(query):
        return sia.scale_invariant_attention(query, query, query)

    kernel = install(Kernel())
    torch.compiler.reset()
    torch.compile(attend, fullgraph=True, backend="aot_eager")(query)
    assert kernel.calls == 0

    assert sia.run_self_checks("cpu")["new"].passed
    checking = kernel.calls
    torch.compiler.reset()
    torch.compile(attend, fullgraph=True, backend="aot_eager")(query)
    assert kernel.calls > checking
    torch.compiler.reset()


def test_a_fresh_check_runs_again_and_replaces_the_outcome(install, query):
    kernel = install(Kernel())
    assert sia.run_self_checks("cpu")["new"].passed
    assert sia.run_self_checks("cpu")["new"].passed
    assert kernel.calls == 2
    kernel.factor = 1.01
    with pytest.warns(RuntimeWarning, match="failed"):
        assert not sia.run_self_checks("cpu", fresh=True)["new"].passed
    assert chosen(query) in ("cpu", "tiled")


def test_only_backends_that_need_it_and_can_run_are_checked(install, monkeypatch):
    kernel = install(Kernel())
    assert list(sia.run_self_checks("cpu")) == ["new"]
    absent = replace(kernel.as_backend(), unavailable_reason=lambda _: "no driver")
    monkeypatch.setitem(backends.BACKENDS, "new", absent)
    assert sia.run_self_checks("cpu") == {}


def test_writers_at_the_same_time_leave_one_whole_file(folder):
    subject = trust.Subject.of(backends.BACKENDS["tiled"], CPU)
    outcome = self_check.Outcome("tiled", declined=("x" * 5000,))
    trust.write_outcome(subject, outcome)
    read = []

    def write_and_read():
        for _ in range(20):
            trust.write_outcome(subject, outcome)
            read.append(trust.read_outcome(subject))

    threads = [threading.Thread(target=write_and_read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [outcome] * 60
    assert len(list(folder.iterdir())) == 1
