"""Table 4 of REPRODUCTION.md, from small records."""

import pytest
from small_records import LENGTHS, conversion_record, table

from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.reporting.evidence import Evidence, Extensions, Size
from scale_invariant_attention.lab.reporting.reproduction import (
    conversion_section,
    page_and_figures,
)

OURS = "scale-invariant-p-rope"


def losses_of(trial):
    config = trial.config
    start = 1.5 + 0.01 * config.seed
    return (start,) * 3 if config.scheme == OURS else (start - 0.1, start + 1, start + 2)


def records(*names, seeds=(0,)):
    trials = extension.table4_trials("mini", names, seeds)
    return [conversion_record(trial, losses_of(trial)) for trial in trials]


def section(*names, seeds=(0,)):
    return conversion_section(records(*names, seeds=seeds))


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
    assert "Scale-inv. p-RoPE at 1,024 and 4,096. In the paper: YaRN at 4,096;" in " ".join(
        page.split()
    )


def test_differences_in_scale_are_listed():
    page = section()
    assert (
        "| model | a Llama of 0.87 million parameters, with RoPE for 8,192,000 tokens first "
        "| Llama-2-7B, as published |"
    ) in page
    assert "| fine-tuned for | 819,200 tokens | about 50 million tokens |" in page
    assert "| AdamW | 0.001, after 0.003 at first | 2e-05 |" in page


def test_other_families_and_shares_are_left_out():
    others = [
        conversion_record(trial, (9.0, 9.0, 9.0))
        for trial in extension.reported_trials("mini", (), (0,))
        if trial.name not in {it.name for it in records()} and trial.config.factor == 16
    ]
    assert conversion_section([*records(), *others]) == section()


def test_one_seed_decides_nothing_and_three_do():
    one, three = section(), section(seeds=(0, 1, 2))
    assert "not decided: one seed" in one and "one seed;" in one
    assert "mean and standard error over 3 seeds" in three
    [paid] = lines(three, "| Ours pays for the conversion")
    assert paid.endswith("| -0.195 | -0.100 ± 0.000 | yes |")


@pytest.mark.parametrize("names", [("rope",), ("rope", "alibi")])
def test_without_our_scheme_there_is_no_section(names):
    assert section(*names) == ""


def test_it_is_a_section_of_the_page():
    main = table(lambda scheme, seed: (1.0, 2.0, 3.0), seeds=(0,))
    found = Extensions(records())
    page, _ = page_and_figures(Evidence(Size("mini", main), extensions=found))
    assert page.index("## Table 1") < page.index("## Table 4") < page.index("## The paper's scale")
    assert LENGTHS == extension.LENGTHS
    assert "## Table 4" not in page_and_figures(Evidence(Size("mini", main)))[0]
