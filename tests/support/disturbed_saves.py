"""Saves that are killed, run out of disk space or race with other processes.

Run by test_storage. Forks after importing torch once: the import takes longer than everything else.
"""

import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from scale_invariant_attention.model import storage

STEPS = ("fsync", "replace", "unlink", "open", "close")
MODELS = {
    name: (
        {"name": name},
        {f"{name}.{i}": torch.full((200, 5), value + i) for i in range(3)},
    )
    for name, value in (("first", 1.0), ("second", -10.0))
}


def save(folder, name):
    storage.save(folder, *MODELS[name], shard_bytes=8000)  # two files


def whole_model(folder):
    """Name of the model in a folder, after checking that it is complete."""
    config, tensors = storage.load(folder)
    expected_config, expected = MODELS[config["name"]]
    assert config == expected_config
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return config["name"]


def unlisted_files(folder):
    """Files that are neither config.json nor named by it."""
    named = storage._read_config_file(folder / "config.json").files.keys()
    return {path.name for path in folder.iterdir()} - named - {"config.json"}


def in_child(action):
    """Run an action in a forked child and return its process id; it exits with 0 on success."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return pid


def kill_at_call(folder, step, number):
    """Save the second model, and die just before the n-th call of an `os` function."""
    original, calls = getattr(os, step), 0

    def count(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(os, step, count)
    save(folder, "second")


def kill_at_every_step(folder):
    """Kill a save at every call of every step in turn, until one completes."""
    seen = Counter()
    for step in STEPS:
        for number in range(1, 100):
            save(folder, "first")
            assert not unlisted_files(folder), "the next save removes leftovers"
            pid = in_child(lambda s=step, n=number: kill_at_call(folder, s, n))
            _, status = os.waitpid(pid, 0)
            seen[step, whole_model(folder)] += 1
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                break
            seen["left files"] += bool(unlisted_files(folder))
        assert number > 1, f"a save never calls {step}"
    save(folder, "first")
    assert not unlisted_files(folder)
    assert seen["replace", "first"] and seen["fsync", "second"] and seen["unlink", "second"]
    assert seen["left files"]


def kill_at_random_moments(folder, trials):
    def save_forever(current):
        while True:
            current = "second" if current == "first" else "first"
            save(folder, current)

    start = time.perf_counter()
    save(folder, "second")
    save(folder, "first")
    two_saves = time.perf_counter() - start
    draw, seen, current = random.Random(0), Counter(), "first"
    # More than enough trials to see both models, even when the machine is slow.
    for trial in range(10 * trials):
        pid = in_child(lambda current=current: save_forever(current))
        time.sleep(draw.uniform(0, two_saves))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        current = whole_model(folder)
        seen[current] += 1
        seen["left files"] += bool(unlisted_files(folder))
        if trial >= trials and seen["first"] and seen["second"] and seen["left files"]:
            break
    else:
        raise AssertionError(f"the kills never came at different moments: {seen}")
    save(folder, "first")
    assert not unlisted_files(folder)


def save_and_load_at_once(folder, times):
    def save_often():
        for number in range(times):
            save(folder, list(MODELS)[number % 2])

    running = {in_child(save_often), in_child(save_often)}
    loads = 0
    while running:
        whole_model(folder)
        loads += 1
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.remove(pid)
            assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
    assert loads > 3
    assert not unlisted_files(folder)


def run_out_of_disk(folder):
    def save_with_little_room(room):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        try:
            save(folder, "second")
        except OSError:
            return
        raise AssertionError("there was room")

    save(folder, "first")
    # Weights are larger than 4000 bytes, and config.json than 300.
    for room in (0, 1, 7, 8, 100, 300, 1000, 4000):
        pid = in_child(lambda room=room: save_with_little_room(room))
        _, status = os.waitpid(pid, 0)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, room
        assert whole_model(folder) == "first"
        assert not unlisted_files(folder)


if __name__ == "__main__":
    scratch = Path(sys.argv[1])
    save(scratch, "first")
    kill_at_every_step(scratch)
    run_out_of_disk(scratch)
    kill_at_random_moments(scratch, trials=25)
    save_and_load_at_once(scratch, times=20)
    print("survived")
