"""Start a self-check in a process of its own, so that a kernel that crashes takes down only that one.

A read of invalid memory leaves a process without a working GPU for the rest of its life. The process is
started by its module, not forked and not spawned: it needs no main guard, and works in notebooks.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from ..files import FolderInUseError, locked
from .self_check import Outcome

MODULE = f"{__package__}._check_process"
# Compilation takes most of it.
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.1


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
            (sys.executable, "-P", "-m", MODULE, *arguments),
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
