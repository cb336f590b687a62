"""Two processes train parts of one model: losses, files and ends equal those of one process."""

import signal
import sys

import pytest
import torch
from sharded_training import AGAIN, CONFIG, NARROW, ODD, ONE_HEAD
from tiny_training import losses, measured, options, same_weights, tiny_config, weights
from two_processes import outcomes, run

from scale_invariant_attention.model import GPT
from scale_invariant_attention.training import StoppedError, read_provenance, train
from scale_invariant_attention.training._parallel import (
    is_sharded,
    load_whole,
    part_like,
    whole,
    whole_on_first,
)
from scale_invariant_attention.training.checkpoints import find_checkpoints, latest_checkpoint
from scale_invariant_attention.training.ranks import Ranks


def stop_at_2(progress):
    if progress.step == 2:
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run by one process that the others must equal."""
    folder = tmp_path_factory.mktemp("alone")
    train(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder of runs by two processes, and how each ended on each rank."""
    folder = tmp_path_factory.mktemp("sharded")
    with pytest.raises(StoppedError, match="step 3 of 8"):
        train(CONFIG, folder / "from-one", watch=stop_at_2)
    return folder, outcomes("sharded_training.py", folder)


def assert_same_but_for_rounding(folder, expected):
    assert losses(folder) == pytest.approx(losses(expected), rel=1e-5)
    found, other = weights(folder), weights(expected)
    assert found.keys() == other.keys()
    for name in found:
        torch.testing.assert_close(found[name], other[name], rtol=0.0, atol=1e-3)


def test_each_rank_has_its_part(sharded):
    """As the scenarios themselves assert."""
    _, ends = sharded
    for name in ("parts", "muon", "muon-of-parts"):
        assert ends[name, 0] == ends[name, 1] == "ended"


def test_two_parts_have_the_losses_of_the_whole(sharded, alone):
    """With learned scalars, parts of batches that differ, clipping, and validation of one batch."""
    folder, ends = sharded
    assert ends["sharded", 0] == ends["sharded", 1] == "ended"
    assert len(losses(folder / "sharded")) == 8 + 2 * 2
    assert_same_but_for_rounding(folder / "sharded", alone)
    norms = [
        [line["gradient_norm"] for line in measured(run) if "loss" in line]
        for run in (folder / "sharded", alone)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert max(norms[0]) > CONFIG.clip_norm


@pytest.mark.parametrize(
    ("name", "config"), [("odd", ODD), ("one-head", ONE_HEAD), ("again", AGAIN)]
)
def test_uneven_shards_and_recomputed_activations(sharded, tmp_path, name, config):
    folder, ends = sharded
    assert ends[name, 0] == ends[name, 1] == "ended"
    train(config, tmp_path)
    assert_same_but_for_rounding(folder / name, tmp_path)


def test_checkpoints_equal_those_of_one_process(sharded, alone):
    folder, _ = sharded
    saved = latest_checkpoint(folder / "sharded" / "checkpoints")
    expected = latest_checkpoint(alone / "checkpoints")
    assert saved.tensors.keys() == expected.tensors.keys()
    assert saved.values["optimisers"] == expected.values["optimisers"]
    for group in saved.tensors:
        found, other = saved.tensors[group], expected.tensors[group]
        assert {n: (t.shape, t.dtype) for n, t in found.items()} == {
            n: (t.shape, t.dtype) for n, t in other.items()
        }
    for name, tensor in saved.tensors["optimisers"].items():
        torch.testing.assert_close(
            tensor, expected.tensors["optimisers"][name], rtol=0.0, atol=1e-3
        )


def test_a_signal_to_one_stops_all(sharded):
    _, ends = sharded
    for name in ("stop-0", "stop-1"):
        for rank in (0, 1):
            assert ends[name, rank].startswith("StoppedError: Stopped and saved at step 3 of 8")


@pytest.mark.parametrize(("name", "resumed_at"), [("stopped-1", 3), ("killed", 4)])
def test_as_many_ranks_resume_exactly(sharded, name, resumed_at):
    folder, _ = sharded
    starts = [(line["step"], line["ranks"]) for line in read_provenance(folder / name)]
    assert starts == [(0, 2), (resumed_at, 2)]
    assert measured(folder / name) == measured(folder / "sharded")
    assert same_weights(weights(folder / name), weights(folder / "sharded"))


def test_one_rank_resumes_for_two(sharded, alone):
    folder, _ = sharded
    train(CONFIG, folder / "stopped-0")
    starts = [(line["step"], line["ranks"]) for line in read_provenance(folder / "stopped-0")]
    assert starts == [(0, 2), (3, 1)]
    assert_same_but_for_rounding(folder / "stopped-0", alone)


def test_two_ranks_resume_for_one(sharded, alone):
    folder, ends = sharded
    assert ends["from-one", 0] == ends["from-one", 1] == "ended"
    starts = [(line["step"], line["ranks"]) for line in read_provenance(folder / "from-one")]
    assert starts == [(0, 1), (3, 2)]
    assert_same_but_for_rounding(folder / "from-one", alone)


def test_bfloat16_is_near_float32(sharded, tmp_path):
    folder, ends = sharded
    assert ends["narrow", 0] == ends["narrow", 1] == "ended"
    assert {tensor.dtype for tensor in weights(folder / "narrow").values()} == {torch.float32}
    train(tiny_config(batch_size=NARROW.batch_size), tmp_path)
    found, expected = losses(folder / "narrow"), losses(tmp_path)
    assert found != pytest.approx(expected, rel=1e-6)
    assert found == pytest.approx(expected, rel=0.05)


def test_divergence_ends_all_ranks_and_nobody_waits(sharded):
    folder, ends = sharded
    for rank in (0, 1):
        assert ends["exploding", rank].startswith("DivergedError: step 2: the loss is ")
    assert ends["exploding", 0] == ends["exploding", 1]
    assert ends["not-finite", 0].startswith("DivergedError: step 1: the weights are not finite.")
    assert ends["not-finite", 1].startswith("FirstRankFailedError: rank 0 failed")
    assert find_checkpoints(folder / "not-finite" / "checkpoints") == []


def test_alone_there_are_no_parts(tmp_path):
    model = train(tiny_config(steps=3, parallel="shard"), tmp_path / "shard")
    train(tiny_config(steps=3), tmp_path / "replicate")
    assert type(model) is GPT
    assert same_weights(weights(tmp_path / "shard"), weights(tmp_path / "replicate"))


def test_tensors_without_parts_stay_as_they_are():
    ranks = Ranks(0, 1, torch.device("cpu"))
    tensor, model = torch.ones(3), GPT(tiny_config().model_config())
    assert not is_sharded(tensor)
    assert whole(tensor) is tensor
    assert part_like(tensor, torch.zeros(3)) is tensor
    assert whole_on_first({"tensor": tensor}, ranks)["tensor"] is tensor
    with pytest.raises(RuntimeError, match="tail"):
        load_whole(model, model.state_dict() | {"tail": tensor})


@pytest.mark.slow
def test_torchrun_trains_a_compiled_model_in_parts(tmp_path):
    """Started as users do."""
    changes = {"steps": 3, "batch_size": 8, "layers": 2, "micro_batch_size": 3}
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "scale_invariant_attention.cli", "train", "-o", str(tmp_path / "run")),
        *(*options(**changes), "--parallel", "shard", "--compile", "true"),
    ]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert read_provenance(tmp_path / "run")[0]["ranks"] == 2
    train(tiny_config(**changes), tmp_path / "alone")
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), rel=1e-3)
