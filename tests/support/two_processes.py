"""Scenarios that two or more processes run together, connected as by torchrun.

A script maps names to actions that take a rank, and passes them to `main`; a test runs the script with
`outcomes`.
"""

import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo  # imported by Adam, once here instead of in both processes

from scale_invariant_attention.training import DivergedError, StoppedError, loop
from scale_invariant_attention.training.ranks import FirstRankFailedError

SIZE = 2
# Exceptions that a scenario may end with; any other fails the test.
EXPECTED = (StoppedError, DivergedError, FirstRankFailedError, OSError, ValueError)


def outcomes(script, folder):
    """Outcome of each scenario of a script, by name and rank."""
    done = run([sys.executable, str(Path(__file__).parent / script), str(folder)])
    assert done.returncode == 0, done.stdout + done.stderr
    ends = {}
    for line in done.stdout.splitlines():
        name, rank, end = line.split(" ", 2)
        ends[name, int(rank)] = end
    return ends


def run(command):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=180,
        check=False,
    )


def interrupted_after(step, interrupt, train):
    """Train, and call `interrupt` after a step, before it is saved."""
    advance = loop._Training.advance

    def interrupted(self):
        progress = advance(self)
        if progress.step == step:
            interrupt()
        return progress

    loop._Training.advance = interrupted
    try:
        train()
    finally:
        loop._Training.advance = advance


def stopped_after(step, stopped_rank, rank, train):
    """Train, and signal only one rank: all must stop after the same step."""

    def interrupt():
        if rank == stopped_rank:
            signal.raise_signal(signal.SIGTERM)

    interrupted_after(step, interrupt, train)


def main(scenarios, size=SIZE):
    """Run all scenarios in all processes, and print the outcome of each."""
    torch.set_num_threads(1)
    ports = [_free_port() for _ in scenarios]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            # Never wait forever for a process that failed.
            signal.alarm(150)
            code = 1
            try:
                _run_scenarios(scenarios, rank, size, ports)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            # The other processes would wait for it.
            for left in children:
                os.kill(left, signal.SIGKILL)
            sys.exit(f"a process ended with {os.waitstatus_to_exitcode(status)}")


def _free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _run_scenarios(scenarios, rank, size, ports):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    for (name, action), port in zip(scenarios.items(), ports, strict=True):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            action(rank)
            end = "ended"
        except EXPECTED as error:
            end = f"{type(error).__name__}: {error}"
        os.write(
            1, f"{name} {rank} {end}\n".encode()
        )  # one write, so that lines of processes do not mix
