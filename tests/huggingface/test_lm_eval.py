"""The lm-eval tasks give the results of our own evaluation, from strings and through its adapter."""

import logging
import math
import warnings

import pytest
import torch

from scale_invariant_attention.data import SameTokens, get_encoding, standard_library
from scale_invariant_attention.data.needles import NeedleTask
from scale_invariant_attention.evaluation import loss_by_length, retrieval
from scale_invariant_attention.huggingface import ScaleInvariantGPTForCausalLM
from scale_invariant_attention.huggingface.export import byte_tokenizer
from scale_invariant_attention.huggingface.lm_eval_tasks import FOLDER
from scale_invariant_attention.huggingface.lm_eval_tasks.tasks import (
    examples,
    score_needles,
    windows,
)
from scale_invariant_attention.model import GPT, GPTConfig

TOKENS = 2048


@pytest.fixture(scope="module")
def gpt():
    """A model whose predictions differ from token to token."""
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("mini", layers=1, width=32, heads=2, scheme_name="logn-rope"))
    for weight in (model.head.weight, model.blocks[0].attention.output.weight):
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def evaluated(gpt):
    """The results of lm-eval, without a network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from lm-eval and its imports
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        model = ScaleInvariantGPTForCausalLM.of(gpt, eos_token_id=0, pad_token_id=0)
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        return lm_eval.simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=byte_tokenizer(), batch_size=4, max_length=2048),
            tasks=["sia_loss_256", "sia_loss_1024", "sia_needle_1024"],
            task_manager=TaskManager(
                include_path=str(FOLDER),
                include_defaults=False,
                metadata={"tokens": TOKENS, "examples": 3},
            ),
            bootstrap_iters=0,
            log_samples=True,
        )


def test_losses_equal_those_of_sia_evaluate(gpt, evaluated):
    same = SameTokens(standard_library("validation"), (256, 1024), at_most=TOKENS)
    for row in loss_by_length(gpt, same):
        found = evaluated["results"][f"sia_loss_{row.length}"]
        assert found["loss,none"] == pytest.approx(row.loss, abs=1e-5)
        assert found["byte_perplexity,none"] == pytest.approx(math.exp(row.loss), rel=1e-5)


def test_answers_equal_those_of_sia_needle(gpt, evaluated):
    task = NeedleTask(standard_library("validation"), get_encoding("bytes"))
    rows = [task.example(1024, number) for number in range(3)]
    answers = retrieval._answers(gpt, task, rows, "cpu")
    samples = sorted(evaluated["samples"]["sia_needle_1024"], key=lambda it: it["doc_id"])
    for (answer, ended), sample in zip(answers, samples, strict=True):
        written = sample["resps"][0][0]
        # Ours stops a few tokens after the length of the right answer.
        assert written == answer if ended else written.startswith(answer[:40])
    results = retrieval.find_needles(gpt, task, 1024, 3)
    share = evaluated["results"]["sia_needle_1024"]["found,none"]
    assert share == retrieval.accuracy(results).mean


def test_windows_are_the_bytes_of_the_corpus():
    same = SameTokens(standard_library("validation"), (256,))
    found = windows(256, tokens=len(same.source))["test"]
    assert len(found) == same.count // 256
    expected = (
        bytes([*tokens.tolist(), target[-1].item()])
        for inputs, targets in same.batches(256, batch_size=64)
        for tokens, target in zip(inputs, targets, strict=True)
    )
    moved = 0
    for row, window in zip(found, expected, strict=True):
        if (row["first"] + row["rest"]).encode() != window:
            # This window was cut inside a character.
            moved += 1
            assert "\ufffd" in window.decode(errors="replace")
    assert moved < 0.01 * len(found)


@pytest.mark.parametrize(
    ("answer", "hits"),
    [("{0};{1};{2}", 3), ("{0};{2};{1}", 3), ("{0};{1};{2}x", 2), ("{0}", 1), ("", 0)],
)
def test_scores_equal_our_own(answer, hits):
    (doc,) = examples(512, examples=1)["test"]
    entries = [
        f"{city}={number}" for city, number in zip(doc["cities"], doc["numbers"], strict=True)
    ]
    assert score_needles(doc, [answer.format(*entries)]) == {"found": (hits, 3)}
    task = NeedleTask(standard_library("validation"), get_encoding("bytes"))
    example = task.example(512, 0)
    assert doc["prompt"].encode() == bytes(example.tokens[: example.answer_start].tolist())
