"""Workers: they save and end with the process that started them, and their death is reported."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENDLESS = """
import signal
import sys
from pathlib import Path
from tiny_training import tiny_config
from scale_invariant_attention.lab.experiments.running import run_side_by_side
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.experiments.trials import TrainingTrial

if __name__ == "__main__":
    # What runs tests in the background may have interrupts ignored, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(sys.argv[1])
    config = tiny_config(steps=10**6, checkpoint_every=10**6)
    trial = TrainingTrial("endless", config, LossEvaluation((32,), 32))
    say = lambda text: print(text, file=sys.stderr, flush=True)
    run_side_by_side([trial], folder, folder, workers=1, notice=say)
"""


@pytest.fixture
def endless(tmp_path):
    """A process that runs a trial without end, which has begun."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    support = Path(__file__).parents[2] / "support"
    path = os.pathsep.join(filter(None, (str(support), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stderr=subprocess.PIPE,
    ) as process:
        metrics = tmp_path / "endless" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
        yield process
        process.kill()


def wait_until(reached, seconds=60):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(process):
    """The processes that a process has started and that are there."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == process.pid:
                found.append(int(status.parent.name))
    return found


def are_gone(workers):
    return not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_save_and_end_with_the_process_that_started_them(tmp_path, endless, number):
    workers = workers_of(endless)
    assert workers
    endless.send_signal(number)
    endless.wait(timeout=60)
    wait_until(lambda: are_gone(workers))
    (saved,) = (tmp_path / "endless" / "checkpoints").glob("step-*")
    assert int(saved.name.removeprefix("step-")) >= 1
    said = "Stopping, in a few seconds: endless"
    assert (said in endless.stderr.read()) == (number == signal.SIGINT)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_worker_that_is_killed_is_reported(endless):
    for worker in workers_of(endless):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{worker}/cmdline").read_bytes():
                os.kill(worker, signal.SIGKILL)
    _, said = endless.communicate(timeout=60)
    assert "the process of endless was killed (exit code -9)" in said
