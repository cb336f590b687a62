"""Several processes train as one: same losses, one writer, and all stop together."""

import sys

import pytest
import torch
from tiny_training import losses, measured, options, same_weights, tiny_config, weights
from two_processes import outcomes, run

from scale_invariant_attention.training import read_provenance, train
from scale_invariant_attention.training.checkpoints import find_checkpoints
from scale_invariant_attention.training.ranks import Ranks, open_ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """The folder of runs by two processes, and how each ended on each rank."""
    folder = tmp_path_factory.mktemp("joined")
    return folder, outcomes("joined_training.py", folder)


@pytest.mark.parametrize(("name", "rows"), [("two", None), ("parts", 3)])
def test_two_processes_have_the_losses_of_one(joined, tmp_path, name, rows):
    folder, ends = joined
    assert ends[name, 0] == ends[name, 1] == "ended"
    train(tiny_config(batch_size=8, micro_batch_size=rows), tmp_path)
    expected, found = losses(tmp_path), losses(folder / name)
    assert len(found) == 8 + 2 * 2
    assert found == pytest.approx(expected, rel=1e-5)
    first, second = weights(tmp_path), weights(folder / name)
    for weight in first:
        torch.testing.assert_close(first[weight], second[weight], rtol=0.0, atol=1e-3)


def test_one_of_them_writes(joined):
    folder, _ = joined
    assert [line["step"] for line in measured(folder / "two")] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    (line,) = read_provenance(folder / "two")
    assert line["ranks"] == 2
    assert [found.step for found in find_checkpoints(folder / "two" / "checkpoints")] == [8, 6]


def test_a_signal_to_one_stops_all(joined):
    _, ends = joined
    for name in ("stop-0", "stop-1"):
        for rank in (0, 1):
            assert ends[name, rank].startswith("StoppedError: Stopped and saved at step 3 of 8")


def test_as_many_ranks_resume_exactly(joined):
    folder, ends = joined
    assert ends["resume-1", 0] == ends["resume-1", 1] == "ended"
    starts = [(line["step"], line["ranks"]) for line in read_provenance(folder / "stopped-1")]
    assert starts == [(0, 2), (3, 2)]
    assert measured(folder / "stopped-1") == measured(folder / "two")
    assert same_weights(weights(folder / "stopped-1"), weights(folder / "two"))


def test_fewer_ranks_may_resume(joined):
    folder, _ = joined
    train(tiny_config(batch_size=8), folder / "stopped-0")
    starts = [(line["step"], line["ranks"]) for line in read_provenance(folder / "stopped-0")]
    assert starts == [(0, 2), (3, 1)]
    assert losses(folder / "stopped-0") == pytest.approx(losses(folder / "two"), rel=1e-5)


def test_errors_reach_all_ranks_and_nobody_waits(joined):
    folder, ends = joined
    assert ends["sums", 0] == ends["sums", 1] == "ended"
    assert ends["failing", 0] == "OSError: the disk is full"
    assert f"{folder / 'two'} holds a run with another configuration" in ends["other", 0]
    for name in ("failing", "other"):
        assert ends[name, 1].startswith("FirstRankFailedError: rank 0 failed, see its error")
    for rank in (0, 1):
        assert "the 7 rows of a batch must be a multiple of the 2 ranks" in ends["odd", rank]
    assert not (folder / "odd").exists()


def test_alone_there_is_no_group(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")  # of somebody else's launcher
    with open_ranks("cpu") as ranks:
        assert ranks == Ranks(0, 1, CPU)
        assert ranks.sum(1, 2.5) == (1.0, 2.5)
        assert ranks.on_first(lambda: "acted") == "acted"
    assert not torch.distributed.is_initialized()


def test_errors_of_the_first_stay_as_they_are():
    def fail():
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        Ranks(0, 1, CPU).on_first(fail)


@pytest.mark.slow
def test_torchrun_trains_with_the_command(tmp_path):
    """Started as users do."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "scale_invariant_attention.cli", "train", "-o", str(tmp_path / "run")),
        *options(steps=3),
    ]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained. The model is in ") == 1
    assert done.stderr.count("step 3: loss ") == 1
    assert read_provenance(tmp_path / "run")[0]["ranks"] == 2
