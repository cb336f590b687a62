"""A training that is killed at any moment, even inside a save, ends like an uninterrupted one."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_training import measured, options, same_weights, weights

from scale_invariant_attention.training import read_provenance
from scale_invariant_attention.training.checkpoints import find_checkpoints

KILLED = Path(__file__).parents[1] / "support" / "killed_training.py"
COMMAND = [sys.executable, "-m", "scale_invariant_attention.cli", "train"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def killed(folder, kills, timeout):
    """Train undisturbed and with kills; return the number of kills, and of those inside saves."""
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run(
        [sys.executable, str(KILLED), str(folder), str(kills), str(seed)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    for training in folder.glob("killed-*"):
        assert same_weights(weights(folder / "whole"), weights(training)), f"seed {seed}"
        assert measured(folder / "whole") == measured(training), f"seed {seed}"
        assert [path.name for path in training.glob("**/.*")] == [], f"seed {seed}"
    return tuple(map(int, re.findall(r"\d+", done.stdout.splitlines()[-1])))


def test_kills_at_random_moments_change_nothing(tmp_path):
    count, in_saves = killed(tmp_path, 6, timeout=120)
    assert count == 6
    assert in_saves > 0


@pytest.mark.slow
def test_hundreds_of_kills_change_nothing(tmp_path):
    count, in_saves = killed(tmp_path, 250, timeout=1800)
    assert count == 250
    assert in_saves >= 75


def test_the_command_resumes_after_a_kill_and_a_stop(tmp_path):
    """A process as users start it: first killed, then asked to stop, then left alone."""
    words = options(steps=40, checkpoint_every=1)
    folder = tmp_path / "run"
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        before = steps_saved(folder)
        with subprocess.Popen(
            [*COMMAND, "-o", str(folder), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        ) as process:
            wait_until(lambda: steps_saved(folder) > before + 2, process)  # noqa: B023
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
        assert process.returncode == code, told
    assert f"in {folder}. Rerun the same command to resume." in told
    assert "Traceback" not in told
    starts = [line["step"] for line in read_provenance(folder)]
    assert len(starts) == 2
    assert starts[1] > 2
    assert steps_saved(folder) > starts[1]


def steps_saved(folder):
    return max((found.step for found in find_checkpoints(folder / "checkpoints")), default=0)


def wait_until(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
