"""Trust on first use: "auto" relies on some backends only after a self-check on the device.

An outcome counts for one device model, one version of the package, of its sources, of Triton and of
torch, and one precision of float32 products. It is kept for the process, and in the user's cache folder
for later ones.

Checks on GPUs run in a process of their own: a kernel that reads invalid memory leaves its process
without a working GPU. That process is started anew, not forked and not spawned, so that it needs no main
guard and works in notebooks.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..files import FolderInUseError, cache_folder, locked, replace_file
from ..provenance import device_name, triton_version
from ._self_check_contracts import CONTRACTS, Contract
from .numerics import float32_precision, holds_values
from .self_check import Outcome, Problem, check, dtype_of

if TYPE_CHECKING:
    from .backends import Backend

# The types of devices whose checks run in a process of their own.
APART = ("cuda",)
# What such a process runs, and how long it may take, most of it for compilation.
PROGRAM = f"from {__name__} import check_here; check_here()"
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.1
MOST_COMPILERS = 8
# A check that ended without an answer, perhaps out of memory, counts this long for other processes, such
# as those that start together. Its own process keeps it: a check that hangs must not be repeated.
PROBLEM_SECONDS = 120.0


@dataclass(frozen=True)
class Subject:
    """Everything that an outcome depends on."""

    backend: str
    device: str
    package_version: str
    sources: str
    triton_version: str
    torch_version: str
    float32_precision: str

    @classmethod
    def of(cls, backend: "Backend", device: torch.device) -> "Subject":
        """The subject on this machine."""
        return cls(
            backend.name,
            device_name(device),
            version("scale-invariant-attention"),
            _sources(),
            triton_version() or "none",
            torch.__version__,
            float32_precision(),
        )


@lru_cache(maxsize=1)
def _sources() -> str:
    """A digest of this package's sources, which may change while its version stays."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Outcomes:
    """The outcomes known to this process, and those on the disk."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_device: dict[tuple[Backend, torch.device, str], Outcome] = {}
        self._by_subject: dict[tuple[Backend, Subject], Outcome] = {}

    def known(self, backend: "Backend", device: torch.device) -> Outcome | None:
        """An earlier outcome, of this process or of another one; never runs a check."""
        outcome = self._by_device.get((backend, device, float32_precision()))
        if outcome is not None:
            return outcome
        with self._lock:
            return self._look_up(backend, device)

    def of(self, backend: "Backend", device: torch.device) -> Outcome:
        """An earlier outcome or, if there is none, that of a check now."""
        outcome = self.known(backend, device)
        if outcome is not None:
            return outcome
        # One thread of one process checks, and the others wait for it.
        with self._lock, one_at_a_time(cache_folder()):
            outcome = self._look_up(backend, device)
            return self._check(backend, device) if outcome is None else outcome

    def renewed(self, backend: "Backend", device: torch.device) -> Outcome:
        """The outcome of a check now, which replaces an earlier one."""
        with self._lock:
            return self._check(backend, device)

    def _look_up(self, backend: "Backend", device: torch.device) -> Outcome | None:
        subject = Subject.of(backend, device)
        outcome = self._by_subject.get((backend, subject)) or read_outcome(subject)
        return None if outcome is None else self._keep(backend, device, subject, outcome)

    def _check(self, backend: "Backend", device: torch.device) -> Outcome:
        subject = Subject.of(backend, device)
        if device.type in APART:
            outcome = check_apart(backend.name, device, asdict(subject))
        else:
            outcome = check(backend, device)
        write_outcome(subject, outcome)
        return self._keep(backend, device, subject, outcome)

    def _keep(
        self, backend: "Backend", device: torch.device, subject: Subject, outcome: Outcome
    ) -> Outcome:
        self._by_device[backend, device, subject.float32_precision] = outcome
        self._by_subject[backend, subject] = outcome
        if not outcome.passed:
            warnings.warn(_warning(subject, outcome), RuntimeWarning, stacklevel=2)
        return outcome


# Once per process needs a place in the process.
OUTCOMES = Outcomes()


def check_here() -> None:
    """Check the backend that the command line names, and print the outcome as the last line.

    Arguments are backend, device and precision of float32 products.
    """
    from .backends import BACKENDS

    name, device, precision = sys.argv[1:]
    torch.backends.cuda.matmul.fp32_precision = precision
    backend, place = BACKENDS[name], torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    compiling = compile_kernels(backend, place)
    outcome = replace(check(backend, place), compile_seconds=compiling)
    document = {"subject": asdict(Subject.of(backend, place)), "outcome": outcome.as_json()}
    print(json.dumps(document), flush=True)


def compile_kernels(
    backend: "Backend", device: torch.device, contracts: Sequence[Contract] = CONTRACTS
) -> float:
    """Run every contract once, several at a time, so that kernels compile in parallel; the seconds.

    What fails here fails again in :func:`check`, which says so.
    """
    start = monotonic()

    def run(contract: Contract, precision: str) -> None:
        # Backward in this thread: otherwise all backward kernels of a GPU would share one.
        with suppress(Exception), torch.autograd.set_multithreading_enabled(False):
            dtype = dtype_of(precision, device)
            Problem.draw(contract, device, dtype).results_of(backend)

    with ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1)) as threads:
        for contract in contracts:
            for precision in contract.precisions:
                threads.submit(run, contract, precision)
    return monotonic() - start


def check_apart(
    backend: str, device: torch.device, subject: dict[str, Any], seconds: float | None = None
) -> Outcome:
    """The outcome of a check in another process, which must be about `subject`."""
    seconds = TIMEOUT_SECONDS if seconds is None else seconds
    if str(device) == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    # The same modules as here, wherever they were found, and none of the current folder.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(it or str(Path.cwd()) for it in sys.path)
    }
    arguments = (backend, str(device), subject["float32_precision"])
    start = monotonic()
    try:
        done = subprocess.run(  # noqa: S603  nothing here comes from outside
            (sys.executable, "-P", "-c", PROGRAM, *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
        return _outcome(done, subject)
    except subprocess.TimeoutExpired:
        problem = f"its process had not ended after {seconds:g} s"
    except OSError as error:
        problem = f"its process could not be started: {error}"
    except _NoOutcomeError as error:
        problem = str(error)
    return Outcome(backend, problem=problem, seconds=monotonic() - start)


class _NoOutcomeError(Exception):
    pass


def _outcome(done: "subprocess.CompletedProcess[str]", subject: dict[str, Any]) -> Outcome:
    last = (done.stdout.splitlines() or [""])[-1]
    try:
        document = json.loads(last)
        about, outcome = document["subject"], Outcome.from_json(document["outcome"])
    except (ValueError, TypeError, KeyError):
        raise _NoOutcomeError(f"its process {_end(done)}") from None
    if about != subject:
        raise _NoOutcomeError(f"its process checked something else: {about}, not {subject}")
    return outcome


def _end(done: "subprocess.CompletedProcess[str]") -> str:
    """How a process without an outcome ended."""
    said = ([line for line in done.stderr.splitlines() if line.strip()] or ["nothing"])[-1]
    if done.returncode < 0:
        known = {it.value: it.name for it in signal.Signals}
        how = f"was killed by {known.get(-done.returncode, f'signal {-done.returncode}')}"
    else:
        how = f"ended with status {done.returncode}"
    return f"{how} and gave no outcome; its last words: {said}"


@contextmanager
def one_at_a_time(folder: Path | None, seconds: float | None = None) -> Iterator[None]:
    """Wait until no other process holds the lock of a folder, and hold it.

    The ranks of a training start together: one checks, the others read its outcome. After `seconds`, and
    where nothing can be locked, continue without the lock.
    """
    end = monotonic() + (1.2 * TIMEOUT_SECONDS if seconds is None else seconds)
    with ExitStack() as stack:
        while folder is not None and monotonic() < end:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(folder, wait=False))
                break
            except FolderInUseError:
                sleep(POLL_SECONDS)
            except OSError:
                break
        yield


def trusted(backend: "Backend", query: Tensor) -> bool:
    """Whether "auto" may rely on a backend that needs a self-check, on the device of a call.

    The check runs now if no outcome is known, unless the call is traced, transformed or captured.
    """
    outcome = OUTCOMES.known(backend, query.device)
    if outcome is None and can_check(query):
        outcome = OUTCOMES.of(backend, query.device)
    return outcome is not None and outcome.passed


def can_check(query: Tensor) -> bool:
    """Whether a check can run in the middle of this call: nothing traces, fakes or captures it."""
    return (
        holds_values(query)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.maybe_current_level() is None
        and torch._C._get_tracing_state() is None
        and not (query.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _warning(subject: Subject, outcome: Outcome) -> str:
    return (
        f'backend {subject.backend!r} failed its self-check on {subject.device}, so "auto" does not '
        f"use it there: {outcome.findings}. Another backend is used instead, which is slower. Please "
        f"report this with the output of `sia doctor --json`, which checks again."
    )


def write_outcome(subject: Subject, outcome: Outcome) -> None:
    """Keep an outcome for later processes; where nothing can be written, each checks again."""
    path = _path(subject)
    if path is None:
        return
    document = {"subject": asdict(subject), "outcome": outcome.as_json()}
    text = json.dumps(document, indent=2)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode())


def read_outcome(subject: Subject) -> Outcome | None:
    """The outcome that an earlier process kept; None if there is none, or it is damaged or expired."""
    path = _path(subject)
    if path is None:
        return None
    try:
        document = json.loads(path.read_bytes())
        if document["subject"] != asdict(subject):
            return None
        outcome = Outcome.from_json(document["outcome"])
        expired = outcome.problem is not None and time() - path.stat().st_mtime > PROBLEM_SECONDS
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if expired else outcome


def _path(subject: Subject) -> Path | None:
    folder = cache_folder()
    digest = hashlib.sha256(json.dumps(asdict(subject)).encode()).hexdigest()
    return None if folder is None else folder / f"self-check-{digest[:32]}.json"
