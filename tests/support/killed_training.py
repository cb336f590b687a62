"""`sia train` in processes that are killed, one after the other, until one of them completes.

Run by test_killing with a folder and a number of kills. Forks after importing torch once: the import
takes longer than everything else. Half of the kills hit a random file operation of a save; the others
hit a random file operation in the run's folder, or a random moment.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # imported by Adam, once here instead of in every process
from tiny_training import options

from scale_invariant_attention.cli import app

# File operations, by the names of Python's audit events.
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir"}

KINDS = ("save", "moment", "save", "file")


def torn(folder):
    """Leftovers of saves that did not complete."""
    return set(folder.glob("checkpoints/.step-*"))


def kill_at_event(part, count):
    """Die at the n-th file operation whose path contains `part`."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event in EVENTS and any(part in str(each) for each in arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def start(folder, words, before=lambda: None):
    """Start a training process without output, and return its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            before()
            app(["train", "-o", str(folder), *words], standalone_mode=False)
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child):
    """The exit code of a process, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def seconds_of(folder, words):
    begin = time.perf_counter()
    assert ended(start(folder, words)) == 0
    return time.perf_counter() - begin


def main(folder, kills, seed):
    rng = random.Random(seed)
    # Every step is saved.
    words = options(steps=8 + 2 * kills, checkpoint_every=1, validate_every=5)
    whole = seconds_of(folder / "whole", words)
    trainings = 1
    done = in_saves = 0
    while done < kills:
        killed = folder / f"killed-{trainings}"
        kind = KINDS[done % len(KINDS)]
        before = torn(killed)
        if kind == "moment":
            child = start(killed, words)
            time.sleep(rng.uniform(0, min(whole, 1.0)))
            os.kill(child, signal.SIGKILL)
        else:
            part, most = ("/.step-", 18) if kind == "save" else (str(killed), 80)
            count = rng.randint(1, most)
            child = start(killed, words, lambda: kill_at_event(part, count))  # noqa: B023
        code = ended(child)
        if code == 0:
            # It completed before it was killed: the remaining kills go to another training.
            trainings += 1
            continue
        assert code == -signal.SIGKILL, f"a process failed on its own, with {code}"
        done += 1
        in_saves += bool(torn(killed) - before)
    # The run that was killed last resumes and completes; a completed run has nothing left to do.
    assert ended(start(killed, words)) == 0
    print(f"{done} kills, {in_saves} inside a save")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
