"""Needles: intact, at random depths, in sequences of exactly the requested length."""

import numpy as np
import pytest
from small_tokenizers import END, SENTENCES, byte_level

from scale_invariant_attention.data import TokenStream, get_encoding, standard_library
from scale_invariant_attention.data.encoding import encode_documents
from scale_invariant_attention.data.needles import CITIES, NeedleFormat, NeedleTask
from scale_invariant_attention.data.tasks import NOT_SCORED

FORMATS = {
    "the paper's": NeedleFormat(),
    "one short": NeedleFormat(needles=1, digits=2),
    "many": NeedleFormat(needles=8, digits=3),
    "by alphabet": NeedleFormat(order="alphabet"),
    "distractors": NeedleFormat(distractors=4),
    "question": NeedleFormat(with_question=True),
    "question and look-alikes": NeedleFormat(
        with_question=True, distractors=3, distractor=NeedleFormat.sentence
    ),
}
BYTES = get_encoding("bytes")


@pytest.fixture(scope="module")
def haystack():
    return standard_library("validation")


def text_of(tokens):
    return bytes(tokens.tolist()).decode(errors="replace")


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def task(request, haystack):
    return NeedleTask(haystack, BYTES, request.param, seed=3)


@pytest.mark.parametrize("length", [777, 2048, 10_001])
def test_all_parts_are_present_and_the_length_is_exact(task, length):
    form = task.format
    for number in range(8):
        example = task.example(length, number)
        assert len(example.tokens) == length
        text = text_of(example.tokens[: example.answer_start])
        assert len(example.needles) == form.needles
        for needle in example.needles:
            sentence = form.sentence.format(city=needle.city, number=needle.number)
            assert text_of(example.tokens[slice(*needle.span)]) == sentence
            entry = form.entry.format(city=needle.city, number=needle.number)
            assert text_of(example.tokens[slice(*needle.answer_span)]) == entry
            assert len(needle.number) == form.digits
            assert 0 <= example.depth(needle) <= 1
        answer = form.between.join(
            form.entry.format(city=needle.city, number=needle.number) for needle in example.needles
        )
        assert text_of(example.tokens[example.answer_start : -1]) == answer
        assert example.tokens[-1] == BYTES.document_start
        spoken_of = [city for city in CITIES if f" {city} number is " in text]
        assert len(spoken_of) == form.needles + form.distractors


def test_without_needles_the_text_is_the_haystack(task, haystack):
    example = task.example(900, 5)
    form, text = task.format, text_of(example.tokens[: example.answer_start])
    opening = form.question.split("{")[0] if form.with_question else form.separator
    text = text[: text.rindex(opening)]
    for start in (form.sentence.split("{")[0], form.distractor.split("{")[0]):
        while start in text:
            before, _, rest = text.partition(start)
            text = before + rest.partition(". ")[2]
    assert text.encode() in bytes(haystack.read(0, len(haystack)).tolist())


def test_the_answer_has_the_requested_order(haystack):
    def cities(form, number):
        return [it.city for it in NeedleTask(haystack, BYTES, form).example(700, number).needles]

    for number in range(5):
        placed = NeedleTask(haystack, BYTES).example(700, number)
        starts = [needle.span[0] for needle in placed.needles]
        assert starts == sorted(starts)
        by_alphabet = cities(NeedleFormat(order="alphabet"), number)
        assert by_alphabet == sorted(by_alphabet)
    asked = NeedleTask(haystack, BYTES, NeedleFormat(with_question=True))
    orders = set()
    for number in range(20):
        example = asked.example(900, number)
        text = text_of(example.tokens[: example.answer_start])
        question = text[text.index("What are") :]
        assert ", ".join(needle.city for needle in example.needles) in question
        starts = [needle.span[0] for needle in example.needles]
        orders.add(starts == sorted(starts))
    assert orders == {True, False}


def test_depths_are_uniform(haystack):
    task = NeedleTask(haystack, BYTES, NeedleFormat(needles=2, digits=1))
    examples = (task.example(20_000, number) for number in range(300))
    depths = np.array([it.depth(needle) for it in examples for needle in it.needles])
    counts, _ = np.histogram(depths, bins=10, range=(0, 1))
    # The statistic of a chi-squared test of 600 draws in 10 bins, 99.9 times in 100 below 27.9.
    assert ((counts - 60) ** 2 / 60).sum() < 27.9


def test_an_example_depends_on_seed_length_and_number_alone(haystack):
    first, again = (NeedleTask(haystack, BYTES, seed=1).example(600, 7) for _ in range(2))
    assert np.array_equal(first.tokens, again.tokens)
    assert first.needles == again.needles
    for other in (
        NeedleTask(haystack, BYTES, seed=2).example(600, 7),
        NeedleTask(haystack, BYTES, seed=1).example(600, 8),
        NeedleTask(haystack, BYTES, seed=1).example(601, 7),
    ):
        assert other.needles != first.needles


def test_only_answers_are_scored(task):
    inputs, targets = task.batch(800, [4, 9])
    assert inputs.shape == targets.shape == (2, 799)
    for number, inputs_row, row in zip([4, 9], inputs, targets, strict=True):
        example = task.example(800, number)
        assert inputs_row.tolist() == example.tokens[:-1].tolist()
        scored = row[row != NOT_SCORED]
        assert scored.tolist() == example.tokens[example.answer_start :].tolist()
        assert bool((row[: example.answer_start - 1] == NOT_SCORED).all())


def test_a_tokenizer_keeps_needles_whole(tmp_path):
    """Needles are inserted between tokens, also where these are words: the sentence stays as encoded."""
    byte_level().save(str(tmp_path / "tokenizer.json"))
    encoding = get_encoding(str(tmp_path / "tokenizer.json"), document_start=END)
    texts = [("text", sentence.encode() * 20) for sentence in SENTENCES]
    haystack = TokenStream(
        encode_documents(encoding, texts),
        vocab_size=encoding.vocab_size,
        document_start=encoding.document_start,
    )
    task = NeedleTask(haystack, encoding, NeedleFormat(needles=2))
    for number in range(10):
        example = task.example(400, number)
        assert len(example.tokens) == 400
        for needle in example.needles:
            decoder = encoding.decoder()
            tokens = example.tokens[slice(*needle.span)].tolist()
            text = "".join(map(decoder.add, tokens)) + decoder.finish()
            assert text == f" The special magic {needle.city} number is {needle.number}. "
            assert encoding.document_start not in tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"digits": 0}, "digits must be at least 1, got 0"),
        ({"needles": 0}, "needles must be at least 1"),
        ({"distractors": -1}, "distractors must be at least 0"),
        ({"order": "random"}, "order must be one of place, alphabet, got 'random'"),
        ({"cities": ("Rome",)}, "cities must be at least 3"),
        ({"cities": ("Rome", "Rome", "Oslo", "Bonn")}, "of which 3 differ"),
        ({"cities": ("Rome", "a;b", "Oslo")}, "got 'a;b'"),
        ({"cities": ("York", "New York", "Oslo")}, "none part of another, got 'York'"),
        ({"sentence": "{city}"}, "sentence must have {city} and {number}"),
        ({"question": "Which?"}, "question must have {cities}"),
        ({"distractors": 1, "distractor": NeedleFormat.sentence}, "distractor must differ"),
    ],
)
def test_bad_formats_are_refused(changes, message):
    with pytest.raises(ValueError, match=message.replace("{", r"\{").replace("}", r"\}")):
        NeedleFormat(**changes)


def test_too_short_a_length_is_refused(haystack):
    task = NeedleTask(haystack, BYTES)
    with pytest.raises(
        ValueError, match=r"length must be at least 1\d\d for these needles.*got 50"
    ):
        task.example(50, 0)


def test_too_short_a_haystack_is_refused(haystack):
    with pytest.raises(ValueError, match="use a longer haystack or a shorter length"):
        NeedleTask(haystack, BYTES).example(len(haystack) + 1000, 0)
