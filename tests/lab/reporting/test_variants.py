"""Labels and looks of variants: one per training on the whole page, and no two alike."""

import json
import re
from dataclasses import replace

import pytest
from small_records import LENGTHS, needle_record, record

from scale_invariant_attention import schemes
from scale_invariant_attention.evaluation import LengthLoss
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.lab.reporting.web_page import render_page
from scale_invariant_attention.lab.reporting.web_page._entries import (
    Entry,
    MeasuredOn,
    Measurement,
)
from scale_invariant_attention.lab.reporting.web_page._inputs import read_entries
from scale_invariant_attention.lab.reporting.web_page._parts import further_looks, scheme_look
from scale_invariant_attention.lab.reporting.web_page._variants import variants_of

LOSSES = (1.0, 2.0, 3.0)


def written(folder, name, scheme="rope", seed=0, skip=0, **changes):
    """Write a record; with `skip`, one that was measured on other text."""
    made = record(scheme, seed, LOSSES, **({"changes": changes} if changes else {}))
    measured = LossEvaluation(LENGTHS, 131_072, skip=skip)
    write_record(replace(made, name=name, trained_as=name, evaluation=measured), folder)


def labels_of(folder):
    """The labels of all runs, by name."""
    variants = variants_of(read_entries([folder]))
    return {entry.name: variant.label for variant in variants for entry in variant.entries}


def data_of(folder):
    return embedded(render_page(read_entries([folder]), title="x"))


def embedded(page):
    [text] = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page)
    return json.loads(text)


def drawn_in(data, chart):
    [found] = [it for it in data["charts"] if it["name"] == chart]
    return [line["key"] for line in found["panels"][0]["lines"]]


def test_runs_that_were_measured_on_different_texts_keep_their_labels(tmp_path):
    """Each would be the only RoPE of its chart; they meet in that of the training."""
    written(tmp_path, "first")
    written(tmp_path, "second", skip=131_072, steps=3000)
    data = data_of(tmp_path)
    labels = ["RoPE", "RoPE, steps 3000"]
    assert [drawn_in(data, "loss-0"), drawn_in(data, "loss-1")] == [labels[:1], labels[1:]]
    assert drawn_in(data, "training-0") == labels
    usual, other = (data["looks"][label] for label in labels)
    assert usual["light"] == scheme_look("rope")["light"] != other["light"]


def test_repetitions_are_named_by_their_runs_wherever_they_appear(tmp_path):
    written(tmp_path, "a")
    written(tmp_path, "b", skip=131_072)
    assert labels_of(tmp_path) == {"a": "RoPE (a)", "b": "RoPE (b)"}
    data = data_of(tmp_path)
    assert drawn_in(data, "loss-1") == ["RoPE (b)"]
    assert data["looks"]["RoPE (a)"] != data["looks"]["RoPE (b)"]


def test_a_repetition_beside_several_seeds_is_named_alone(tmp_path):
    for seed in (0, 1):
        written(tmp_path, f"seed-{seed}", seed=seed)
    written(tmp_path, "seeds-again")
    assert labels_of(tmp_path) == {
        "seed-0": "RoPE",
        "seed-1": "RoPE",
        "seeds-again": "RoPE (seeds-again)",
    }


def test_equal_settings_are_named_alike_in_all_schemes(tmp_path):
    """Of three runs two have 3,000 steps, each of another scheme: the third is the unusual one."""
    written(tmp_path, "a", steps=3000)
    written(tmp_path, "b", steps=1500)
    written(tmp_path, "c", scheme="alibi", steps=3000)
    assert labels_of(tmp_path) == {"a": "RoPE", "b": "RoPE, steps 1500", "c": "ALiBi"}
    page = render_page(read_entries([tmp_path]), title="x")
    assert "Unless a row says otherwise, steps is 3000." in page


def test_numbers_that_differ_in_their_last_digits_are_two_variants(tmp_path):
    written(tmp_path, "a", seed=0, matrix_rate=0.02)
    written(tmp_path, "b", seed=1, matrix_rate=0.02000001)
    assert labels_of(tmp_path) == {"a": "RoPE", "b": "RoPE, matrix_rate 0.02000001"}


def test_another_task_is_in_the_label_and_keeps_the_colour(tmp_path):
    written(tmp_path, "text")
    write_record(needle_record("rope", 0, LOSSES[:1] * 3), tmp_path)
    data = data_of(tmp_path)
    assert drawn_in(data, "needles-0") == ["RoPE, needles"]
    text, needles = (data["looks"][it] for it in ("RoPE", "RoPE, needles"))
    assert text["light"] == needles["light"]
    assert text["dash"] != needles["dash"]


@pytest.mark.parametrize(
    ("starts", "labels"),
    [
        (("rope-2-seed-0", "rope-2-seed-1"), ["RoPE", "RoPE"]),
        (("runs/short", "runs/long"), ["RoPE (a)", "RoPE (b)"]),
    ],
)
def test_models_to_start_from_may_differ_in_their_seeds_alone(tmp_path, starts, labels):
    for seed, (name, start) in enumerate(zip("ab", starts, strict=True)):
        made = needle_record("rope", seed, (1.0, 0.5, 0.0))
        config = replace(made.config, start=start)
        write_record(replace(made, name=name, config=config), tmp_path)
    assert list(labels_of(tmp_path).values()) == labels


def test_own_schemes_without_a_line_style_look_different():
    losses = [LengthLoss(256, 1.0, None, 8), LengthLoss(512, 2.0, None, 8)]
    measured = Measurement(MeasuredOn("text", tokens=8), losses)
    config = record("rope", 0, LOSSES).config
    names = ("own-a", "own-b")
    for name in names:
        schemes.register(schemes.NamedScheme(name, schemes.Scheme, name, f"{name}."))
    try:
        entries = [
            Entry(
                name=name,
                source=name,
                config=replace(config, scheme=name),
                origins=[],
                losses=measured,
            )
            for name in names
        ]
        looks = embedded(render_page(entries, title="x"))["looks"]
    finally:
        for name in names:
            schemes.unregister(name)
    assert looks["own-a"] != looks["own-b"]


def test_of_hundreds_of_lines_none_looks_like_another():
    looks = [json.dumps(it) for it, _ in zip(further_looks(), range(500), strict=False)]
    assert len(set(looks)) == 500
