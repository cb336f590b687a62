"""Recall: which predictions count as recalled."""

import math

import pytest
import torch

from scale_invariant_attention.data import get_encoding, standard_library
from scale_invariant_attention.data.strings import RepeatedStringTask
from scale_invariant_attention.data.tasks import RecallTask
from scale_invariant_attention.evaluation.retrieval import recall_accuracy

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
    share = recall_accuracy(Oracle(), TASK, length=64, examples=10)
    assert (share.hits, share.count) == (40, 40)


def test_forgotten_values_are_not_counted():
    share = recall_accuracy(Oracle(forgets_before=27), TASK, length=64, examples=400)
    # Half of the pairs come later, and one value in eight is the guessed one.
    assert share.count == 1600
    assert share.mean == pytest.approx(0.5 * (1 + 1 / 8), abs=0.06)


def test_the_loss_is_that_of_scored_tokens():
    """A model that is sure of every value and of nothing else."""
    found = recall_accuracy(lambda tokens: 100 * Oracle()(tokens), TASK, length=64, examples=3)
    assert found.loss == pytest.approx(0, abs=1e-6)
    guessed = recall_accuracy(lambda tokens: 0 * Oracle()(tokens), TASK, length=64, examples=3)
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

    found = recall_accuracy(copy, task, length=64, examples=4)
    assert (found.hits, found.count) == (24, 24)


def test_many_examples_are_scored_in_parts():
    """More examples than fit into one call of the model."""
    at_once = recall_accuracy(Oracle(), TASK, length=9000, examples=3)
    assert (at_once.hits, at_once.count) == (12, 12)
