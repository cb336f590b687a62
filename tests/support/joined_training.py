"""Trainings by two processes, joined as torchrun joins them. Run by test_ranks with a folder.

Prints for every scenario and rank how it ended. Both processes go through all scenarios.
"""

import os
import signal
import socket
import sys
from pathlib import Path

import torch
import torch._dynamo  # Adam would, in both processes
from tiny_training import tiny_config

from scale_invariant_attention.training import StoppedError, loop, train
from scale_invariant_attention.training.ranks import FirstRankFailedError, open_ranks

SIZE = 2
CONFIG = tiny_config(batch_size=8)
PARTS = tiny_config(batch_size=8, micro_batch_size=3)


def sums(rank):
    with open_ranks("cpu") as ranks:
        assert (ranks.rank, ranks.size) == (rank, SIZE)
        assert ranks.sum(1.0, rank) == (2.0, 1.0)
        assert ranks.on_first(lambda: "told") == ("told" if rank == 0 else None)
    assert not torch.distributed.is_initialized()


def failing_first(rank):
    def fail():
        raise OSError("the disk is full")

    with open_ranks("cpu") as ranks:
        ranks.on_first(fail)


def training(config, name):
    return lambda rank: train(config, FOLDER / name)


def stopping(stopped_rank, name):
    """A signal to one rank alone, once it has made step 3: all must stop, after the same step."""

    def action(rank):
        advance = loop._Training.advance

        def interrupted(self):
            progress = advance(self)
            if (progress.step, rank) == (3, stopped_rank):
                signal.raise_signal(signal.SIGTERM)
            return progress

        loop._Training.advance = interrupted
        try:
            train(CONFIG, FOLDER / name)
        finally:
            loop._Training.advance = advance

    return action


SCENARIOS = {
    "sums": sums,
    "failing": failing_first,
    "two": training(CONFIG, "two"),
    "parts": training(PARTS, "parts"),
    "stop-0": stopping(0, "stopped-0"),
    "stop-1": stopping(1, "stopped-1"),
    "resume-1": training(CONFIG, "stopped-1"),
    "other": training(tiny_config(batch_size=8, steps=9), "two"),
    "odd": training(tiny_config(batch_size=7), "odd"),
}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def go_through(rank, ports):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    for (name, action), port in zip(SCENARIOS.items(), ports, strict=True):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            action(rank)
            end = "ended"
        except (StoppedError, FirstRankFailedError, OSError, ValueError) as error:
            end = f"{type(error).__name__}: {error}"
        os.write(1, f"{name} {rank} {end}\n".encode())  # whole, beside those of the other


def main():
    ports = [free_port() for _ in SCENARIOS]
    children = []
    for rank in range(SIZE):
        child = os.fork()
        if child == 0:
            # Nobody waits for ever for a process that has failed.
            signal.alarm(100)
            code = 1
            try:
                go_through(rank, ports)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(f"exit codes {codes}" if any(codes) else 0)


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    torch.set_num_threads(1)
    main()
