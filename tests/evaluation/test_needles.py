"""Finding needles with models that know the answers, and with random weights."""

import math

import pytest
import torch

from scale_invariant_attention.data import get_encoding, standard_library
from scale_invariant_attention.data.needles import NeedleFormat, NeedleTask
from scale_invariant_attention.evaluation.retrieval import (
    NeedleResult,
    accuracy,
    accuracy_by_depth,
    depth_edges,
    find_needles,
)
from scale_invariant_attention.model import GPT, GPTConfig

TASK = NeedleTask(standard_library("validation"), get_encoding("bytes"), NeedleFormat(digits=3))


class Oracle:
    """A model that reads the answers from the task, except those of some examples."""

    def __init__(self, task, length, wrong=(), confidence=0.9):
        rows = [task.example(length, number) for number in range(20)]
        self.rows = {tuple(row.tokens[: row.answer_start].tolist()): row for row in rows}
        self.wrong = [rows[number] for number in wrong]
        self.confidence = confidence

    def generate(self, tokens, max_new_tokens, *, token_mask, stop_tokens):
        written = []
        for prompt, mask in zip(tokens, token_mask, strict=True):
            row = self.rows[tuple(prompt[mask].tolist())]
            answer = torch.tensor(row.tokens[row.answer_start :])
            if row in self.wrong:
                answer[0] = ord("?")
            filled = torch.full((max_new_tokens,), stop_tokens[0])
            filled[: len(answer)] = answer
            written.append(filled)
        return torch.cat([tokens, torch.stack(written)], dim=1)

    def __call__(self, tokens, targets, *, reduction):
        assert reduction == "none"
        return torch.where(targets < 0, 0.0, -math.log(self.confidence))


def test_one_who_knows_finds_all_and_one_slip_costs_one_needle():
    results = find_needles(Oracle(TASK, 600, wrong=[3]), TASK, 600, 10)
    assert len(results) == 30
    missed = [it for it in results if not it.found]
    assert [it.example for it in missed] == [3]
    assert accuracy(results).mean == pytest.approx(29 / 30)


def test_log_probabilities_are_per_entry():
    for result in find_needles(Oracle(TASK, 600), TASK, 600, 3):
        assert result.log_probability == pytest.approx(result.tokens * math.log(0.9))
        assert result.tokens in range(len("Rome=123"), len("Singapore=123") + 1)


def test_depths_and_lengths_equal_those_of_the_examples():
    results = find_needles(Oracle(TASK, 500), TASK, 500, 4)
    example = TASK.example(500, 2)
    mine = [it for it in results if it.example == 2]
    assert [it.depth for it in mine] == [example.depth(needle) for needle in example.needles]
    assert {it.length for it in results} == {500}


@pytest.mark.parametrize("scheme", ["rope", "rope-ntk", "alibi", "scale-invariant-p-rope"])
def test_log_probabilities_equal_a_forward_pass(scheme):
    torch.manual_seed(0)
    config = GPTConfig.preset("mini", scheme_name=scheme, train_length=256)
    model = GPT(config)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    results = find_needles(model, TASK, 300, 3)
    for number in range(3):
        row = TASK.example(300, number)
        tokens = torch.tensor(row.tokens).unsqueeze(0)
        logits = model(tokens[:, :-1]).detach().log_softmax(-1)[0]
        for needle, result in zip(row.needles, results[3 * number :], strict=False):
            span = range(*needle.answer_span)
            expected = sum(float(logits[place - 1, row.tokens[place]]) for place in span)
            assert result.log_probability == pytest.approx(expected, rel=1e-4)
            assert not result.found


def test_progress_counts_examples():
    seen = []
    find_needles(Oracle(TASK, 600), TASK, 600, 7, progress=seen.append)
    assert seen[-1] == 7


def test_shares_by_depth_hold_every_needle_once():
    results = [
        NeedleResult(100, 0, depth, depth < 0.5, -1.0, 5) for depth in (0.0, 0.2, 0.5, 0.99, 1.0)
    ]
    near, middle, empty, far = accuracy_by_depth(results, depth_edges(4))
    assert (near.share.hits, near.share.count) == (2, 2)
    assert (empty.share.hits, empty.share.count) == (0, 1)
    assert middle.share is None
    assert (far.share.hits, far.share.count) == (0, 2)
    assert (near.start, far.stop) == (0.0, 1.0)
