"""Recall: which predictions count as recalled."""

import pytest
import torch

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


def test_many_examples_are_scored_in_parts():
    """More examples than fit into one call of the model."""
    at_once = recall_accuracy(Oracle(), TASK, length=9000, examples=3)
    assert (at_once.hits, at_once.count) == (12, 12)
