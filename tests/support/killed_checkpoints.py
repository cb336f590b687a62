"""Checkpoints saved by processes that are killed at random moments, one after the other.

Run by test_disturbed_checkpoints with a folder and a number of kills. Forks after importing torch once:
the import takes longer than everything else.
"""

import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from scale_invariant_attention.training.checkpoints import (
    find_checkpoints,
    latest_checkpoint,
    save_checkpoint,
)


def contents(step):
    """Tensors and values of a checkpoint, different at every step."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {
            "weight": torch.randn(300, 200, generator=generator),
            "step": torch.tensor(step),
        },
        "random": {"torch": generator.get_state()},
    }
    return tensors, {"position": step * 7, "history": list(range(step, step + 50))}


def metric(step):
    return float((step * 37) % 101)


def save_forever(folder, first, report):
    for step in range(first, sys.maxsize):
        tensors, values = contents(step)
        save_checkpoint(folder, step, tensors, values, metric=metric(step))
        os.write(report, step.to_bytes(8, "little"))


def check_whole(checkpoint):
    tensors, values = contents(checkpoint.step)
    assert checkpoint.values == values
    assert checkpoint.metric == metric(checkpoint.step)
    assert checkpoint.tensors.keys() == tensors.keys()
    for group, members in tensors.items():
        assert checkpoint.tensors[group].keys() == members.keys()
        assert all(torch.equal(checkpoint.tensors[group][n], members[n]) for n in members)


def start_child(folder, first):
    """Start a process that saves from step `first` on, with a pipe that reports finished steps."""
    reports, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reports)
            save_forever(folder, first, report)
        finally:
            os._exit(1)
    os.close(report)
    return child, os.fdopen(reports, "rb", buffering=0)


def kill(child):
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child failed on its own"


def kill_once(folder, first, longest):
    """Let a process save, kill it within `longest` seconds, and return the last step it finished."""
    child, reports = start_child(folder, first)
    time.sleep(random.uniform(0, longest))
    kill(child)
    with reports:
        steps = reports.read()
    return int.from_bytes(steps[-8:], "little") if steps else first - 1


def seconds_of_saves(folder, count):
    """Seconds that a process takes for `count` saves, from its start."""
    start = time.perf_counter()
    child, reports = start_child(folder, 1)
    with reports:
        for _ in range(count):
            assert reports.read(8)
    seconds = time.perf_counter() - start
    kill(child)
    shutil.rmtree(folder)
    return seconds


def main(folder, kills):
    random.seed(int.from_bytes(os.urandom(4), "little"))
    # Chosen so that on any machine some children finish saves and most are killed during one.
    longest = seconds_of_saves(folder, 3)
    step, finished, interrupted = 0, 0, 0
    for _ in range(kills):
        done = kill_once(folder, step + 1, longest)
        finished += done - step
        checkpoint = latest_checkpoint(folder)
        if checkpoint is None:
            assert done == 0
            continue
        check_whole(checkpoint)
        # The kill may have come after the checkpoint was complete and before it was reported.
        assert checkpoint.step in (done, done + 1), (checkpoint.step, done)
        found = find_checkpoints(folder)
        assert all(other.damage is None for other in found)
        names = {path.name for path in folder.iterdir()}
        leftovers = {name for name in names if re.fullmatch(r"\.step-\d{8}-[0-9a-f]{16}", name)}
        assert names == leftovers | {other.path.name for other in found}
        interrupted += bool(leftovers)
        step = checkpoint.step
    tensors, values = contents(step + 1)
    save_checkpoint(folder, step + 1, tensors, values, metric=metric(step + 1))
    best = min(metric(found.step) for found in find_checkpoints(folder))
    names = sorted(path.name for path in folder.iterdir())
    assert 1 <= len(names) <= 3, names
    assert all(name.startswith("step-") for name in names), names
    print(f"{finished} saves finished, {interrupted} of {kills} kills left something, best {best}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
