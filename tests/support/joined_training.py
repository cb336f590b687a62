"""Training by two processes, each with a copy of the model. Run by test_ranks with a folder."""

import sys
from pathlib import Path

import torch
from tiny_training import tiny_config
from two_processes import SIZE, main, stopped_after

from scale_invariant_attention.training import train
from scale_invariant_attention.training.ranks import open_ranks

CONFIG = tiny_config(batch_size=8)
PARTS = tiny_config(batch_size=8, micro_batch_size=3)


def sums(rank):
    with open_ranks("cpu") as ranks:
        assert (ranks.rank, ranks.size) == (rank, SIZE)
        assert ranks.sum(1.0, rank) == (2.0, 1.0)
        assert ranks.on_first(lambda: "result") == ("result" if rank == 0 else None)
    assert not torch.distributed.is_initialized()


def failing_first(rank):
    def fail():
        raise OSError("the disk is full")

    with open_ranks("cpu") as ranks:
        ranks.on_first(fail)


def training(config, name):
    return lambda rank: train(config, FOLDER / name)


def stopping(stopped_rank, name):
    return lambda rank: stopped_after(3, stopped_rank, rank, lambda: train(CONFIG, FOLDER / name))


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

if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    main(SCENARIOS)
