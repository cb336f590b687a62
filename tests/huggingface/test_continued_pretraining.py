"""Continued pretraining: data, resuming, adapters, and refusals."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from hugging_face_models import converted, some_tokens, tiny

from scale_invariant_attention.data import TokenStream, Windows
from scale_invariant_attention.data.tasks import NOT_SCORED, RecallTask, TaskBatches
from scale_invariant_attention.huggingface.continued_pretraining import (
    PretrainingRecipe,
    TaskRows,
    WindowRows,
    continue_pretraining,
    fine_tune_on_task,
    training_log,
)

RECIPE = PretrainingRecipe(
    tokens=8 * 4 * 16,
    length=16,
    batch_size=4,
    micro_batch_size=2,
    learning_rate=1e-2,
    schedule="cosine",
    warmup_steps=1,
    checkpoint_every=3,
)


@pytest.fixture(scope="module")
def corpus():
    tokens = some_tokens(2000).numpy().astype("uint8")
    return TokenStream([tokens], vocab_size=96, document_start=0)


def trained(model, corpus, folder, recipe=RECIPE, **others):
    return continue_pretraining(model, corpus, folder, recipe, use_cpu=True, **others)


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_rows_are_distinct_windows_of_the_corpus(corpus):
    rows = WindowRows(corpus, RECIPE)
    assert len(rows) == 32
    windows = Windows(corpus, length=16, batch_size=4, order="shuffled", seed=0)
    for step in range(8):
        step_rows = [rows[4 * step + row]["input_ids"] for row in range(4)]
        assert torch.equal(torch.stack(step_rows), windows[step][0])


def test_the_first_loss_is_the_models_loss_on_the_first_windows(corpus, tmp_path):
    model = converted()
    ids = torch.stack([WindowRows(corpus, RECIPE)[row]["input_ids"] for row in range(4)])
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.item()
    seen = []
    out = trained(model, corpus, tmp_path, watch=lambda step, loss: seen.append((step, loss)))
    log = training_log(tmp_path)
    assert log["loss"][0] == pytest.approx(expected, rel=1e-5)
    assert seen == list(enumerate(log["loss"], start=1))
    assert len(log["seconds"]) == RECIPE.steps == 8
    assert out.config.scale_invariant_attention["scheme"] == "scale-invariant-p-rope"


TASK = RecallTask(keys=8, values=8, noise=8, pairs=2, queries=1)


def test_rows_of_a_task_are_its_examples_and_grow():
    rows = TaskRows(TASK, RECIPE, first_length=8, growth_steps=4)
    batches = TaskBatches(TASK, length=16, batch_size=4, first_length=8, growth_steps=4)
    assert len(rows) == 32
    for step in (0, 3, 7):
        inputs, targets = batches[step]
        for index in range(4):
            row = rows[4 * step + index]
            assert torch.equal(row["input_ids"][:-1], inputs[index])
            assert torch.equal(row["labels"][1:], targets[index])
            # The answer is there to be learned, and nothing else is scored.
            [at] = (row["labels"] != NOT_SCORED).nonzero().flatten().tolist()
            assert row["input_ids"][at] == row["labels"][at]
    assert len(rows[0]["input_ids"]) == 8 and len(rows[31]["input_ids"]) == 16


def test_a_model_is_fine_tuned_on_a_task(tmp_path):
    model = converted()
    rows = [TaskRows(TASK, RECIPE)[row] for row in range(4)]
    ids, labels = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        expected = model(ids, labels=labels).loss.item()
    out = fine_tune_on_task(model, TASK, tmp_path, RECIPE, use_cpu=True)
    log = training_log(tmp_path)
    assert log["loss"][0] == pytest.approx(expected, rel=1e-5) and len(log["loss"]) == 8
    again = fine_tune_on_task(converted(), TASK, tmp_path, RECIPE, use_cpu=True)
    assert same(out, again)
    with pytest.raises(ValueError, match="differs in task"):
        fine_tune_on_task(converted(), TASK, tmp_path, RECIPE, growth_steps=2, use_cpu=True)


class InterruptedTrainingError(Exception):
    pass


def interrupt_at(step):
    def watch(done, loss):
        if done == step:
            raise InterruptedTrainingError

    return watch


def test_an_interrupted_training_resumes_and_ends_with_the_same_weights(corpus, tmp_path):
    start = converted(scheme="logn-p-rope")
    whole = trained(copy.deepcopy(start), corpus, tmp_path / "whole")
    folder = tmp_path / "interrupted"
    with pytest.raises(InterruptedTrainingError):
        trained(copy.deepcopy(start), corpus, folder, watch=interrupt_at(5))
    # A checkpoint that was being written when the training was interrupted.
    (folder / "checkpoint-4").mkdir()
    steps = []
    resumed = trained(
        copy.deepcopy(start), corpus, folder, watch=lambda step, loss: steps.append(step)
    )
    assert steps == [4, 5, 6, 7, 8]
    assert same(resumed, whole)
    assert training_log(folder)["loss"] == training_log(tmp_path / "whole")["loss"]
    # A finished training is loaded: no step is run.
    opened = trained(copy.deepcopy(start), corpus, folder, watch=interrupt_at(1))
    assert same(opened, whole)


def test_adapters_are_trained_and_merged(corpus, tmp_path):
    pytest.importorskip("peft")
    start = converted()
    out = trained(copy.deepcopy(start), corpus, tmp_path, replace(RECIPE, lora_rank=2))
    assert type(out) is type(start)
    before, after = start.state_dict(), out.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("proj" in name for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4) <= 2
    saved = type(out).from_pretrained(tmp_path / "model")
    assert same(saved, out)


def test_adapters_refuse_schemes_with_parameters(corpus, tmp_path):
    pytest.importorskip("peft")
    with pytest.raises(ValueError, match=r"lora_rank must be None .*position_scheme"):
        trained(converted(scheme="logn-rope"), corpus, tmp_path, replace(RECIPE, lora_rank=2))


def test_a_folder_of_another_training_is_refused(corpus, tmp_path):
    with pytest.raises(InterruptedTrainingError):
        trained(tiny(), corpus, tmp_path, watch=interrupt_at(1))
    with pytest.raises(ValueError, match=r"differs in recipe .*: pass another folder"):
        trained(tiny(), corpus, tmp_path, replace(RECIPE, seed=1))
    with pytest.raises(ValueError, match="differs in scheme"):
        trained(converted(), corpus, tmp_path)
    other = tiny()
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    with pytest.raises(ValueError, match=r"differs in model .*: pass another folder"):
        trained(other, corpus, tmp_path)
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"]["seed"] == 0


def test_another_optimiser_trains_and_is_part_of_the_training(corpus, tmp_path):
    def still(model):
        return torch.optim.SGD(model.parameters(), lr=0.0)

    model = converted()
    before = copy.deepcopy(model)
    assert same(trained(model, corpus, tmp_path, optimiser=still(model)), before)
    again = converted()
    assert same(trained(again, corpus, tmp_path, optimiser=still(again)), before)
    with pytest.raises(ValueError, match="differs in optimiser"):
        trained(converted(), corpus, tmp_path)


def test_tokens_of_another_vocabulary_are_refused(corpus, tmp_path):
    corpus = copy.copy(corpus)
    corpus.vocab_size = 97
    with pytest.raises(ValueError, match=r"below the model's vocab_size, 96, got .* 97"):
        trained(tiny(), corpus, tmp_path)
    assert not any(tmp_path.iterdir())


def test_arguments_that_the_recipe_sets_are_refused(corpus, tmp_path):
    with pytest.raises(TypeError, match="learning_rate cannot be"):
        trained(tiny(), corpus, tmp_path, learning_rate=1.0)


def test_devices_share_a_step():
    assert RECIPE.micro_batches(1) == (2, 2)
    assert replace(RECIPE, micro_batch_size=None).micro_batches(4) == (1, 1)
    with pytest.raises(ValueError, match="must be a multiple of micro_batch_size times devices"):
        RECIPE.micro_batches(4)


@pytest.mark.parametrize("field", ["tokens", "length", "batch_size", "lora_rank", "learning_rate"])
def test_zero_is_refused(field):
    with pytest.raises(ValueError, match=field):
        PretrainingRecipe(**{field: 0})


def test_the_papers_recipe_is_the_default():
    recipe = PretrainingRecipe()
    assert (recipe.length, recipe.learning_rate, recipe.tokens) == (4096, 2e-5, 50_000_000)
    assert recipe.steps * recipe.batch_size * recipe.length >= recipe.tokens
