"""`sia train` in processes that are killed, one after the other, until one of them ends.

Run by test_killing with a folder and a number of kills. Forks after one import of torch, which would
take longer than all the rest. Half of the kills come inside a save, at a random one of the things that
it does to files; the others at any such thing in the folder of the run, or at a random moment.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # Adam would, in every process anew
from tiny_training import options

from scale_invariant_attention.cli import app

# What a process asks of the system for its files, as Python's audit events name it.
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir"}

KINDS = ("save", "moment", "save", "file")


def torn(folder):
    """What saves that did not end have left."""
    return set(folder.glob("checkpoints/.saving-*"))


def kill_at_event(place, count):
    """Die at the given one of the things done to files whose path has `place` in it."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event in EVENTS and any(place in str(each) for each in arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def start(folder, words, before=lambda: None):
    """A process that trains, and its id; what it prints is of no interest."""
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
            place, most = (".saving-", 18) if kind == "save" else (str(killed), 80)
            count = rng.randint(1, most)
            child = start(killed, words, lambda: kill_at_event(place, count))  # noqa: B023
        code = ended(child)
        if code == 0:
            # It ended before it was killed: the kills that are left are for another training.
            trainings += 1
            continue
        assert code == -signal.SIGKILL, f"a process failed by itself, with {code}"
        done += 1
        in_saves += bool(torn(killed) - before)
    # Whatever was killed last goes on to its end; a training that has ended has nothing left to do.
    assert ended(start(killed, words)) == 0
    print(f"{done} kills, {in_saves} inside a save")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
