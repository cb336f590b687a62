"""Table 4 of REPRODUCTION.md, from small records."""

from dataclasses import replace

import pytest
from small_records import LENGTHS, table
from small_records import record as trained

from scale_invariant_attention.lab.experiments import table4
from scale_invariant_attention.lab.reporting.evidence import Evidence, Size
from scale_invariant_attention.lab.reporting.reproduction import (
    conversion_section,
    page_and_figures,
)

OURS = "scale-invariant-p-rope"


def record(trial, losses):
    """The record of a conversion with these losses."""
    like = trained("rope", trial.config.seed, losses)
    return replace(
        like,
        config=trial.config,
        evaluation=trial.evaluation,
        name=trial.name,
        trained_as=trial.training_name,
        provenance=replace(like.provenance, transformers="5.0.0"),
    )


def losses_of(trial):
    config = trial.config
    start = 1.5 + 0.01 * config.seed + 0.1 * config.calibrated
    if config.scheme == OURS:
        return (start + 1, start + 1, start + 1) if config.continued is None else (start,) * 3
    return (start - 0.1, start + 1, start + 2)


def section(*names, seeds=(0,)):
    records = [
        record(trial, losses_of(trial)) for trial in table4.conversion_trials("mini", names, seeds)
    ]
    return conversion_section(records)


def lines(page, start):
    return [line for line in page.splitlines() if line.startswith(start)]


def test_every_scheme_stands_beside_the_paper():
    page = section()
    assert lines(page, "| RoPE* |") == [
        "| RoPE* | **1.400** | 2.500 | 3.500 | +2.100 | 1.968 | 7.036 | 8.815 | +6.847 |"
    ]
    assert lines(page, "| Scale-inv. p-RoPE | 1.500") == [
        "| Scale-inv. p-RoPE | 1.500 | **1.500** | **1.500** | +0.000 "
        "| 2.163 | **2.193** | **2.252** | +0.089 |"
    ]
    assert len([line for line in lines(page, "|") if line.count("|") == 10]) == 12
    assert "Scale-inv. p-RoPE at 4,096. In the paper: YaRN at 4,096" in " ".join(page.split())


def test_differences_in_scale_are_listed():
    page = section()
    assert (
        "| model | a Llama of 0.87 million parameters, with RoPE for 1,228,800 tokens first "
        "| Llama-2-7B, as published |"
    ) in page
    assert "| fine-tuned for | 122,880 tokens | about 50 million tokens |" in page
    assert "| AdamW | 0.001, after 0.003 at first | 2e-05 |" in page


def test_ours_is_shown_calibrated_and_without_fine_tuning():
    page = section()
    assert lines(page, "| fine-tuned |") == ["| fine-tuned | 1.500 | 1.500 | 1.500 |"]
    assert lines(page, "| calibrated, fine-tuned |")[0].startswith(
        "| calibrated, fine-tuned | 1.600"
    )
    assert lines(page, "| only converted |") == ["| only converted | 2.500 | 2.500 | 2.500 |"]
    assert lines(page, "| calibrated, only converted |")
    said = " ".join(page.split())
    assert (
        "by +0.100 at 256, +0.100 at 1,024 and +0.100 at 4,096 when the model is fine-tuned" in said
    )
    assert "for 30 steps" in said
    # Lower than the others, save its own uncalibrated row.
    assert "ours has the lowest loss of all at no length" in said


def test_one_seed_decides_nothing_and_three_do():
    one, three = section(), section(seeds=(0, 1, 2))
    assert "not decided: one seed" in one and "one seed;" in one
    assert "mean and standard error over 3 seeds" in three
    # Two calibrated, two not: the seeds of each row are those of one way alone.
    assert "| fine-tuned | 1.510 ± 0.006 |" in three
    [paid] = lines(three, "| Ours pays for the conversion")
    assert paid.endswith("| -0.195 | -0.100 ± 0.000 | yes |")


@pytest.mark.parametrize("names", [("rope",), ("rope", "alibi")])
def test_without_our_scheme_there_is_no_section(names):
    assert section(*names) == ""


def test_it_is_a_section_of_the_page():
    main = table(lambda scheme, seed: (1.0, 2.0, 3.0), seeds=(0,))
    converted = [record(trial, losses_of(trial)) for trial in table4.conversion_trials()]
    page, _ = page_and_figures(Evidence(Size("mini", main), conversions=converted))
    assert page.index("## Table 1") < page.index("## Table 4") < page.index("## The paper's scale")
    assert LENGTHS[0] == table4.LENGTH
    assert "## Table 4" not in page_and_figures(Evidence(Size("mini", main)))[0]
