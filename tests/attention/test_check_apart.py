"""Self-checks in a process of their own: whatever happens there, "auto" survives and falls back."""

import json
import sys
import threading
import warnings
from dataclasses import asdict, replace

import pytest
import torch

import scale_invariant_attention as sia
from scale_invariant_attention.attention import backends, self_check, trust

CPU = torch.device("cpu")


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A function that makes the process of a check end in some way; it returns the log of its runs."""
    monkeypatch.setattr(trust, "APART", ("cpu",))
    monkeypatch.setattr(trust, "OUTCOMES", trust.Outcomes())
    monkeypatch.setattr(trust, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(trust, "PROGRAM", "import pretended_check; pretended_check.main()")
    tiled = replace(backends.BACKENDS["tiled"], auto_on=("cpu",), needs_self_check=True)
    first = {"tiled": tiled}
    others = {name: it for name, it in backends.BACKENDS.items() if name != "tiled"}
    monkeypatch.setattr(backends, "BACKENDS", first | others)
    log, file = tmp_path / "log", tmp_path / "outcome.json"
    document = {
        "subject": asdict(trust.Subject.of(tiled, CPU)),
        "outcome": self_check.Outcome("tiled", seconds=0.1, compile_seconds=3.0).as_json(),
    }

    def ends(how, **changed):
        file.write_text(json.dumps(document | {"subject": document["subject"] | changed}))
        monkeypatch.setenv("PRETENDED", how)
        monkeypatch.setenv("PRETENDED_LOG", str(log))
        monkeypatch.setenv("PRETENDED_OUTCOME", str(file))
        return log

    return ends


@pytest.fixture
def query():
    return torch.randn(1, 2, 8, 4)


def chosen(query):
    return sia.backend_for(query, query, query)


def test_a_check_that_passes_there_is_trusted_here(pretend, query):
    log = pretend("passes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [chosen(query) for _ in range(3)] == ["tiled"] * 3
    assert log.read_text() == "tiled cpu ieee\n"
    assert sia.run_self_checks("cpu")["tiled"].compile_seconds == 3.0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "killed by SIGSEGV"),
        ("raises", "ended with status 1.*illegal memory access"),
        ("is silent", "ended with status 0"),
    ],
)
def test_a_process_that_dies_is_survived_with_a_warning(pretend, query, how, said):
    log = pretend(how)
    with pytest.warns(RuntimeWarning, match=f"'tiled' failed its self-check on cpu.*{said}"):
        out = sia.scale_invariant_attention(query, query, query)
    assert chosen(query) != "tiled"
    expected = sia.scale_invariant_attention(query, query, query, backend="reference")
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert log.read_text().count("\n") == 1


def test_a_process_that_hangs_is_ended(pretend, query, monkeypatch):
    monkeypatch.setattr(trust, "TIMEOUT_SECONDS", 1.0)
    pretend("hangs")
    with pytest.warns(RuntimeWarning, match="had not ended after 1 s"):
        assert chosen(query) != "tiled"


def test_an_outcome_about_something_else_does_not_count(pretend, query):
    pretend("passes", device="another GPU")
    with pytest.warns(RuntimeWarning, match="checked something else.*another GPU"):
        assert chosen(query) != "tiled"


def test_without_an_interpreter_nothing_is_trusted(pretend, query, monkeypatch):
    pretend("passes")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.warns(RuntimeWarning, match="could not be started"):
        assert chosen(query) != "tiled"


@pytest.mark.parametrize(("how", "trusted"), [("passes", True), ("killed", False)])
@pytest.mark.filterwarnings("ignore:backend 'tiled' failed")
def test_of_processes_that_start_together_one_checks(pretend, how, trusted):
    """Locks of files hold between threads too, if each opens the file: they stand for processes."""
    log, backend, found = pretend(how), backends.BACKENDS["tiled"], []

    def rank():
        found.append(trust.Outcomes().of(backend, CPU).passed)

    ranks = [threading.Thread(target=rank) for _ in range(4)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert found == [trusted] * 4
    assert log.read_text().count("\n") == 1


def test_a_lock_that_is_never_released_delays_but_does_not_stop(tmp_path):
    reached = threading.Event()
    with trust.one_at_a_time(tmp_path, 1.0):

        def wait():
            with trust.one_at_a_time(tmp_path, 0.3):
                reached.set()

        threading.Thread(target=wait).start()
        assert reached.wait(20)


def test_the_real_process_checks_under_the_given_precision(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    backend = backends.BACKENDS["tiled"]
    subject = asdict(trust.Subject.of(backend, CPU)) | {"float32_precision": "tf32"}
    outcome = trust.check_apart("tiled", CPU, subject, seconds=3000)
    assert outcome.passed, outcome.findings
    assert outcome.compile_seconds > 0
    assert outcome.closest is not None
