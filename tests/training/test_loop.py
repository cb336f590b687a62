"""The training loop: its gradients, records, checkpoints and ends."""

import errno
import json
import math
import resource
import signal
import time

import numpy as np
import pytest
import torch
from tiny_training import measured, same_weights, tiny_config, weights

from scale_invariant_attention.data import (
    TokenStream,
    Windows,
    open_shards,
    standard_library,
    write_shard,
)
from scale_invariant_attention.data.shard_records import write_record
from scale_invariant_attention.files import FileRecord, FolderInUseError
from scale_invariant_attention.files.manifest import signed
from scale_invariant_attention.model import GPT
from scale_invariant_attention.training import (
    DivergedError,
    StoppedError,
    build_optimisers,
    loop,
    read_config,
    read_metrics,
    read_provenance,
    train,
)
from scale_invariant_attention.training._optimisers import fast_in_bfloat16
from scale_invariant_attention.training.checkpoints import (
    CheckpointNotSavedError,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
)
from scale_invariant_attention.training.runs import DifferentConfigError
from scale_invariant_attention.training.training_data import TrainingData


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    train(tiny_config(), folder)
    return folder


class KilledError(Exception):
    """Ends a training between two steps, as a kill would."""


def killed_at(step):
    def watch(progress):
        if progress.step == step:
            raise KilledError

    return watch


def losses_of(folder):
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def test_the_arithmetic_is_that_of_a_loop_written_out(whole):
    config = tiny_config()
    torch.manual_seed(config.seed)
    model = GPT(config.model_config())
    optimisers = build_optimisers(model, config.learning_rates())
    batches = Windows(standard_library("train"), length=32, batch_size=4, order="shuffled", seed=0)
    losses = []
    for step in range(config.steps):
        tokens, targets = batches[step]
        loss = model(tokens, targets=targets)
        loss.backward()
        losses.append(loss.item())
        optimisers.set_schedule_factor(config.learning_schedule().factor(step, config.steps))
        optimisers.step()
        optimisers.zero_grad()
    assert same_weights(model.state_dict(), weights(whole))
    assert losses_of(whole) == losses


def test_a_run_is_one_folder(whole):
    assert read_config(whole) == tiny_config().to_dict()
    assert {path.name for path in whole.iterdir()} == {
        *("config.json", "metrics.jsonl", "provenance.jsonl", "checkpoints", "model")
    }
    (line,) = read_provenance(whole)
    assert line["step"] == 0
    assert line["seed"] == 0
    assert line["ranks"] == 1
    assert line["device"] == "cpu"
    assert line["tokens"]["train"] == len(standard_library("train"))
    assert {"commit", "torch", "python", "cpu", "version", "date"} <= line.keys()
    metrics = read_metrics(whole)
    steps = [line for line in metrics if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 9))
    assert all(line["seconds"] > 0 and line["gradient_norm"] > 0 for line in steps)
    assert [line["factor"] for line in steps] == [1, 1, 1, 1, 1, 1, 2 / 3, 1 / 3]
    validations = {line["step"]: line["validation"] for line in metrics if "validation" in line}
    assert list(validations) == [4, 8]
    assert list(validations[8]) == ["32", "64"]
    assert [found.step for found in find_checkpoints(whole / "checkpoints")] == [8, 6]


def test_it_learns(whole):
    losses = losses_of(whole)
    assert losses[0] == pytest.approx(math.log(256))
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("step", [1, 2, 7, 8])
def test_a_run_that_broke_off_ends_as_one_that_did_not(whole, tmp_path, step):
    with pytest.raises(KilledError):
        train(tiny_config(), tmp_path, watch=killed_at(step))
    train(tiny_config(), tmp_path)
    assert same_weights(weights(whole), weights(tmp_path))
    assert measured(whole) == measured(tmp_path)
    assert [line["step"] for line in read_provenance(tmp_path)] == [0, step - step % 2]


def test_random_numbers_resume(tmp_path, monkeypatch):
    drawn = {}

    def drawing(training, *batch):
        drawn.setdefault(training.folder.name, {})[training.step] = torch.rand(()).item()
        return gradients(training, *batch)

    gradients = loop._Training._gradients
    monkeypatch.setattr(loop._Training, "_gradients", drawing)
    train(tiny_config(), tmp_path / "whole")
    with pytest.raises(KilledError):
        train(tiny_config(), tmp_path / "killed", watch=killed_at(5))
    torch.manual_seed(99)
    train(tiny_config(), tmp_path / "killed")
    assert drawn["whole"] == drawn["killed"]


def test_leftovers_of_kills_are_cleared(tmp_path):
    for name in (".probe-0123456789abcdef", ".config.json-0123456789abcdef"):
        (tmp_path / name).write_text("torn")
    train(tiny_config(steps=1), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_leftovers_of_a_kill_in_the_last_save_are_cleared_by_a_rerun(tmp_path):
    train(tiny_config(steps=1), tmp_path)
    (tmp_path / "checkpoints" / ".step-00000001-0123456789abcdef").mkdir()
    train(tiny_config(steps=1), tmp_path)
    assert [path.name for path in tmp_path.glob("**/.*")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_stops(whole, tmp_path, number):
    told = []

    def watch(progress):
        if progress.step == 2:
            signal.raise_signal(number)

    with pytest.raises(StoppedError, match=r"step 3 of 8.*Rerun the same command"):
        train(tiny_config(), tmp_path, watch=watch, notice=told.append)
    assert told == ["Stopping after this step, with a checkpoint."]
    assert find_checkpoints(tmp_path / "checkpoints")[0].step == 3
    train(tiny_config(), tmp_path, notice=told.append)
    assert told[-1] == "Resuming from step 3 of 8."
    assert same_weights(weights(whole), weights(tmp_path))
    assert measured(whole) == measured(tmp_path)


def test_a_signal_in_the_last_step_changes_nothing(whole, tmp_path):
    def watch(progress):
        if progress.step == 7:
            signal.raise_signal(signal.SIGTERM)

    train(tiny_config(), tmp_path, watch=watch)
    assert same_weights(weights(whole), weights(tmp_path))


def test_parts_of_a_batch_add_up_to_it(whole, tmp_path):
    """Even if the parts differ in size: three rows and one."""
    for rows in (1, 3):
        folder = tmp_path / str(rows)
        train(tiny_config(micro_batch_size=rows), folder)
        found, expected = losses_of(folder), losses_of(whole)
        assert found == pytest.approx(expected, rel=1e-5)


def test_clipping_bounds_what_the_optimisers_see(tmp_path):
    """Muon and the first step of Adam forget the size of a gradient; Adam's moments do not."""
    moments, norms = [], []
    for clip_norm in (None, 0.01):
        folder = tmp_path / str(clip_norm)
        train(tiny_config(steps=1, clip_norm=clip_norm), folder)
        saved = latest_checkpoint(folder / "checkpoints")
        moments.append(saved.tensors["optimisers"]["head.weight.exp_avg"])
        norms.append(read_metrics(folder)[0]["gradient_norm"])
    assert norms[0] == norms[1] > 0.1
    torch.testing.assert_close(moments[1], moments[0] * 0.01 / norms[0], rtol=1e-3, atol=0.0)


def test_another_configuration_is_refused_and_nothing_is_lost(whole):
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(DifferentConfigError, match="steps is 8 there, 9 here"):
        train(tiny_config(steps=9), whole)
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_two_at_once_are_refused(tmp_path):
    def watch(progress):
        if progress.step == 1:
            with pytest.raises(FolderInUseError, match=str(tmp_path)):
                train(tiny_config(), tmp_path)
            raise KilledError

    with pytest.raises(KilledError):
        train(tiny_config(), tmp_path, watch=watch)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, poison, monkeypatch):
    """The step, the norms and the last good checkpoint are named."""

    def poisoned(training, *batch):
        loss, norm = gradients(training, *batch)
        return (loss, norm) if training.step < 3 else (poison, norm)

    gradients = loop._Training._gradients
    monkeypatch.setattr(loop._Training, "_gradients", poisoned)
    with pytest.raises(DivergedError) as diverged:
        train(tiny_config(), tmp_path)
    message = str(diverged.value)
    assert message.startswith(f"step 4: the loss is {poison} (guessing: 5.545)")
    assert "the norm of its gradient" in message
    assert "the norm of the weights" in message
    assert f"The last good checkpoint is {tmp_path / 'checkpoints' / 'step-00000002'}" in message
    assert [found.step for found in find_checkpoints(tmp_path / "checkpoints")] == [2]


def test_a_loss_that_explodes_stops_the_run(tmp_path):
    with pytest.raises(DivergedError, match=r"step \d+: .*There is no earlier checkpoint"):
        train(tiny_config(head_rate=1e4, checkpoint_every=0), tmp_path)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    """The loss of the step before was still good."""

    def watch(progress):
        raise AssertionError(progress)

    config = tiny_config(head_rate=1e38, embedding_rate=1e38, checkpoint_every=1)
    with pytest.raises(
        DivergedError, match=r"step 1: the weights are not finite.*no earlier checkpoint"
    ):
        train(config, tmp_path, watch=watch)
    assert find_checkpoints(tmp_path / "checkpoints") == []


def test_a_disk_without_room_is_reported_before_the_first_step(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(OSError, match=r"has 1.0 kB free, but .* are needed") as full:
        train(tiny_config(), tmp_path / "run")
    assert full.value.errno == errno.ENOSPC
    assert list((tmp_path / "run").iterdir()) == []


def test_room_that_its_own_checkpoints_take_is_not_asked_for_again(whole, tmp_path, monkeypatch):
    with pytest.raises(KilledError):
        train(tiny_config(), tmp_path, watch=killed_at(7))
    there = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))

    class Usage:
        # Four checkpoints at once, of which two are there.
        free = there + 10_000

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    train(tiny_config(), tmp_path)
    assert same_weights(weights(whole), weights(tmp_path))


def test_a_folder_that_is_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"file cannot be written to: .*give another folder"):
        train(tiny_config(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_save_that_fails_costs_no_checkpoint(whole, tmp_path):
    """Files may not grow beyond 20 kB while step 4 is saved."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def watch(progress):
        if progress.step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))

    try:
        with pytest.raises(
            CheckpointNotSavedError, match=r"the last saved checkpoint .*/step-00000002"
        ):
            train(tiny_config(), tmp_path, watch=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (left,) = find_checkpoints(tmp_path / "checkpoints")
    assert (left.step, left.damage) == (2, None)
    train(tiny_config(), tmp_path)
    assert same_weights(weights(whole), weights(tmp_path))
    assert measured(whole) == measured(tmp_path)


def test_data_that_has_changed_is_refused(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"{number} bottles of beer on the wall. " * 20)
    config = tiny_config(data=f"text:{text}")
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", watch=killed_at(3))
    (text / "more.txt").write_text("no more bottles of beer on the wall, no more bottles of beer")
    with pytest.raises(ValueError, match=r"has changed since .*step-00000002 was saved"):
        train(config, tmp_path / "run")
    (text / "more.txt").unlink()
    train(config, tmp_path / "run")


def test_replaced_data_of_the_same_size_is_refused(tmp_path):
    def write(seed):
        for mark in ("train", "val"):
            tokens = np.random.default_rng(seed).integers(0, 256, 5000)
            write_shard(tmp_path / "shards" / f"tokens_{mark}_000000.bin", tokens)

    config = tiny_config(data=f"shards:{tmp_path / 'shards'}", vocab_size=50304)
    fingerprints = {}
    for seed in (0, 1):
        write(seed)
        fingerprints[seed] = open_shards(tmp_path / "shards", "train").fingerprint()
    write(0)
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", watch=killed_at(3))
    write(1)
    both = rf"fingerprints\.train is '{fingerprints[0]}' there, '{fingerprints[1]}' here"
    with pytest.raises(ValueError, match=rf"has changed since .*step-00000002 was saved: {both}"):
        train(config, tmp_path / "run")
    write(0)
    train(config, tmp_path / "run")


def test_a_token_between_the_samples_is_found_by_the_recorded_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr(TokenStream, "sampled_fingerprint", lambda stream: "the same")
    folder = tmp_path / "shards"

    def write(last):
        for mark in ("train", "val"):
            tokens = np.append(np.random.default_rng(0).integers(0, 256, 4999), last)
            write_shard(folder / f"tokens_{mark}_000000.bin", tokens)
        noted = {"vocab_size": 256, "document_start": 0, "complete": True}
        write_record(folder, noted, {it.name: FileRecord.of(it) for it in folder.glob("*.bin")})

    config = tiny_config(data=f"shards:{folder}")
    write(1)
    with pytest.raises(KilledError):
        train(config, tmp_path / "run", watch=killed_at(3))
    write(2)
    with pytest.raises(
        ValueError, match=r"has changed since .*: shards\.train is '.*' there, '.*' here"
    ):
        train(config, tmp_path / "run")
    write(1)
    train(config, tmp_path / "run")


def test_a_checkpoint_of_an_earlier_version_is_compared_by_size(tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        patches.setattr(TrainingData, "identity", lambda data: {"tokens": data.tokens})
        with pytest.raises(KilledError):
            train(tiny_config(), tmp_path, watch=killed_at(3))
    (checkpoint,) = find_checkpoints(tmp_path / "checkpoints")
    assert "fingerprints" not in load_checkpoint(checkpoint.path).values
    train(tiny_config(), tmp_path)


def test_the_best_checkpoint_is_kept(tmp_path, monkeypatch):
    losses = iter([2.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr(loop, "validation_losses", lambda *_: {32: next(losses), 64: 9.0})
    train(tiny_config(validate_every=2, keep_checkpoints=1), tmp_path)
    assert [found.step for found in find_checkpoints(tmp_path / "checkpoints")] == [8, 4]


UNITS = fast_in_bfloat16(torch.device("cpu"))


@pytest.mark.skipif(not UNITS, reason="this CPU has no units for bfloat16")
def test_bfloat16_on_a_cpu_with_units_for_it(whole, tmp_path):
    train(tiny_config(precision="bfloat16"), tmp_path, device="cpu")
    assert losses_of(tmp_path) == pytest.approx(losses_of(whole), rel=0.05)


@pytest.mark.slow
@pytest.mark.skipif(not UNITS, reason="this CPU has no units for bfloat16")
def test_units_for_bfloat16_multiply_faster():
    """What the processor says of itself is true."""
    wide = torch.randn(1024, 1024)
    half = wide.bfloat16()

    def seconds(matrix):
        started = time.perf_counter()
        matrix @ matrix
        return time.perf_counter() - started

    times = [(seconds(wide), seconds(half)) for _ in range(10)]
    assert min(it for _, it in times) < min(it for it, _ in times)


def test_bfloat16_is_refused_where_it_would_crawl(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "fast_in_bfloat16", lambda device: False)
    with pytest.raises(ValueError, match="precision must be float32 on cpu"):
        train(tiny_config(precision="bfloat16"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_bfloat16_computes_in_it_and_keeps_weights_in_float32(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "fast_in_bfloat16", lambda device: True)
    model = train(tiny_config(precision="bfloat16"), tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    found, expected = losses_of(tmp_path), losses_of(whole)
    assert found != expected
    assert found == pytest.approx(expected, rel=0.05)


def test_the_configuration_is_json(whole):
    config = json.loads((whole / "config.json").read_text())
    assert config == signed(tiny_config().to_dict())


@pytest.mark.slow
@pytest.mark.parametrize(("compiled", "checks"), [(True, 1), (False, 0)])
def test_a_compiled_model_checks_its_backends_before_it_is_compiled(
    tmp_path, monkeypatch, compiled, checks
):
    class CompiledError(Exception):
        pass

    def compiling(*_, **settings):
        assert settings == {"compiled": compiled}
        raise CompiledError

    checked = []
    monkeypatch.setattr(loop, "run_self_checks", checked.append)
    monkeypatch.setattr(loop, "hold_model", compiling)
    with pytest.raises(CompiledError):
        train(tiny_config(compile=compiled), tmp_path)
    assert checked == [torch.device("cpu")] * checks


def test_a_compiled_model_learns_the_same(whole, tmp_path):
    train(tiny_config(compile=True), tmp_path)
    found, expected = losses_of(tmp_path), losses_of(whole)
    assert found == pytest.approx(expected, rel=1e-3)
