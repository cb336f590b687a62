"""Scores: which answers are right, which examples entirely, and the loss above the optimum."""

import math

import pytest
import torch

from scale_invariant_attention.data import get_encoding, standard_library
from scale_invariant_attention.data.strings import RepeatedStringTask
from scale_invariant_attention.data.tasks import FractalNoiseTask, RecallTask
from scale_invariant_attention.evaluation.task_scores import score_task

TASK = RecallTask(keys=8, values=8, noise=4, pairs=6, queries=4)


class Oracle:
    """Looks up every value; forgets the pairs before a position."""

    def __init__(self, forgets_before=0):
        self.forgets_before = forgets_before

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, TASK.vocab_size)
        for row, line in enumerate(tokens.tolist()):
            mark = line.index(TASK.vocab_size - 1)
            for index in range(mark + 1, len(line), 2):
                pair = line.index(line[index])
                value = line[pair + 1] if pair >= self.forgets_before else TASK.keys
                # Predictions elsewhere are wrong, so only queried keys may count.
                logits[row, index, value] = 1
        return logits


def test_an_oracle_recalls_everything():
    score = score_task(Oracle(), TASK, length=64, examples=10)
    assert (score.answers.hits, score.answers.count) == (40, 40)
    assert (score.whole.hits, score.whole.count) == (10, 10)
    assert score.excess is None


def test_forgotten_values_are_not_counted():
    score = score_task(Oracle(forgets_before=27), TASK, length=64, examples=400)
    # Half of the pairs come later, and one value in eight is the guessed one.
    assert score.answers.count == 1600
    assert score.answers.mean == pytest.approx(0.5 * (1 + 1 / 8), abs=0.06)
    # Four answers are right together about as often as if they were independent.
    assert score.whole.mean == pytest.approx(score.answers.mean**4, abs=0.06)


def test_the_loss_is_that_of_scored_tokens():
    """A model that is sure of every value and of nothing else."""
    found = score_task(lambda tokens: 100 * Oracle()(tokens), TASK, length=64, examples=3)
    assert found.loss == pytest.approx(0, abs=1e-6)
    guessed = score_task(lambda tokens: 0 * Oracle()(tokens), TASK, length=64, examples=3)
    assert guessed.loss == pytest.approx(math.log(TASK.vocab_size))


def test_an_induction_head_continues_repeated_strings():
    task = RepeatedStringTask(standard_library("validation"), get_encoding("bytes"), 12, 6)

    def copy(tokens):
        """After the last six tokens, what followed them at first; no text has six such letters."""
        logits = torch.zeros(*tokens.shape, 256)
        for row, line in enumerate(tokens.tolist()):
            for end in range(7, len(line) + 1):
                start = next(i for i in range(end) if line[i : i + 6] == line[end - 6 : end])
                logits[row, end - 1, line[start + 6] if start + 6 < len(line) else 0] = 1
        return logits

    found = score_task(copy, task, length=64, examples=4).answers
    assert (found.hits, found.count) == (24, 24)


def test_many_examples_are_scored_in_parts():
    """More examples than fit into one call of the model."""
    score = score_task(Oracle(), TASK, length=9000, examples=3)
    assert (score.answers.count, score.whole.hits) == (12, 3)


NOISE = FractalNoiseTask(memory=0.3)


def best_prediction(sharpened=1.0):
    """The logits of the law of the noise, from the losses that it states for either bit."""

    def model(tokens):
        bits = tokens[:, 1:].numpy()
        numbers = [found[row.tobytes()] for row in bits]
        _, targets, losses = NOISE.process(tokens.shape[1] + 1, numbers)
        drawn = torch.from_numpy(losses).neg().exp()
        logits = torch.full((*tokens.shape, 3), -1e9, dtype=torch.float64)
        of_bit = torch.from_numpy(targets)[..., None]
        logits.scatter_(2, of_bit, sharpened * drawn.log()[..., None])
        return logits.scatter_(2, 1 - of_bit, sharpened * (1 - drawn).log()[..., None])

    examples = NOISE.process(60, range(50))[0][:, 1:]
    found = {row.tobytes(): number for number, row in enumerate(examples)}
    return model


def test_the_best_prediction_has_no_excess():
    score = score_task(best_prediction(), NOISE, length=60, examples=50)
    assert score.excess.mean == pytest.approx(0, abs=1e-12)
    assert score.loss == pytest.approx(NOISE.optimal_losses(60, range(50)).mean() / 59)


def test_another_prediction_has_the_excess_of_its_divergence():
    sure = score_task(best_prediction(sharpened=2), NOISE, length=60, examples=50)
    assert sure.excess.mean > 5 * sure.excess.standard_error > 0
    # Sharper predictions are right as often.
    assert sure.answers == score_task(best_prediction(), NOISE, length=60, examples=50).answers
    even = score_task(lambda tokens: torch.zeros(*tokens.shape, 3), NOISE, length=60, examples=50)
    optimum = NOISE.optimal_losses(60, range(50)).mean() / 59
    assert even.excess.mean == pytest.approx(math.log(3) - optimum)
