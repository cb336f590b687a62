"""The head of REPRODUCTION.md: verdicts, contributions and the step at which models begin to copy."""

from dataclasses import replace

import pytest
from small_records import needle_record, record

from scale_invariant_attention.lab.records import TrainingCurve
from scale_invariant_attention.lab.reporting._summary import (
    CONTROLS,
    RECOMMENDED,
    contributions,
    headline_table,
    left_out,
    passing_table,
    readme_section,
    verdicts,
)
from scale_invariant_attention.lab.reporting.evidence import Size
from scale_invariant_attention.lab.seeds import Spread


def size(losses, needles=None, seeds=(0, 1, 2)):
    """A size with losses and shares by scheme, each a little different for every seed."""
    return Size(
        "mini",
        [
            record(scheme, seed, tuple(it + 0.1 * seed for it in values))
            for seed in seeds
            for scheme, values in losses.items()
        ],
        [
            needle_record(scheme, seed, values)
            for seed in seeds
            for scheme, values in (needles or {}).items()
        ],
    )


LOSSES = {"alibi": (1.2, 1.0, 0.9), "rope": (1.1, 2.0, 3.0), RECOMMENDED: (1.0, 1.0, 1.0)}
NEEDLES = {"alibi": (1.0, 0.5, 0.1), RECOMMENDED: (0.9, 0.8, 0.7)}


def test_the_recommended_scheme_is_compared_with_the_best_other_one_at_each_length():
    found = verdicts([size(LOSSES, NEEDLES)])
    assert [(it.measure, it.multiple, it.rival) for it in found] == [
        ("loss", 1, "rope"),
        ("loss", 4, "alibi"),
        ("loss", 16, "alibi"),
        ("needles", 4, "alibi"),
        ("needles", 16, "alibi"),
    ]
    differences = [it.difference.mean for it in found]
    assert differences == pytest.approx([0.1, 0.0, -0.1, 0.3, 0.6])
    assert [it.text for it in found] == ["better", "not decided", "worse", "better", "better"]


def test_seeds_that_disagree_decide_nothing_and_one_seed_neither():
    [verdict, *_] = verdicts([size({"rope": (1.1, 2.0, 3.0), RECOMMENDED: (1.0, 1.0, 1.0)})])
    undecided = replace(verdict, difference=Spread.over([0.1, -0.1, 0.05]))
    assert undecided.text == "not decided"
    assert {it.text for it in verdicts([size(LOSSES, seeds=(0,))])} == {"one seed"}


def test_schemes_with_one_seed_are_left_out_while_others_have_several():
    several, single = size(LOSSES), size({"yarn": (0.5, 0.5, 0.5)}, seeds=(0,))
    both = Size("mini", [*several.losses, *single.losses], several.needles)
    assert [it.rival for it in verdicts([both])] == [it.rival for it in verdicts([several])]
    assert left_out([both]) == ["YaRN"]
    assert left_out([several]) == left_out([size(LOSSES, seeds=(0,))]) == []


def test_without_the_recommended_scheme_there_is_no_verdict():
    without = size({"rope": (1.1, 2.0, 3.0), "alibi": (1.2, 1.0, 0.9)})
    assert verdicts([without]) == []
    assert contributions(without) == ""


def test_the_table_has_loss_and_needles_by_multiple_of_the_training_length():
    header, _, *rows = headline_table(size(LOSSES, NEEDLES)).splitlines()
    assert header == (
        "| scheme | loss, 1x | loss, 4x | loss, 16x | needles, 1x | needles, 4x | needles, 16x |"
    )
    # Needles of RoPE are not recorded.
    assert [row.split("|")[1].strip() for row in rows] == ["RoPE", "ALiBi", "Scale-inv. spread"]
    assert rows[0].endswith("|  |  |  |")
    assert rows[1].count("**") == 6


def test_contributions_are_differences_from_the_recommended_scheme():
    losses = dict.fromkeys(CONTROLS, (1.5, 1.75, 2.0)) | {RECOMMENDED: (1.0, 1.0, 1.0)}
    _, _, *rows = contributions(size(losses)).splitlines()
    assert len(rows) == len(CONTROLS)
    for row in rows:
        assert "| +0.500 ± 0.000 | +0.750 ± 0.000 | +1.000 ± 0.000 |  |  |  |" in row


def test_the_readme_says_where_the_recommended_scheme_is_better_and_where_not():
    section = readme_section([size(LOSSES, NEEDLES)], figure="it.png", figures_at="docs")
    assert "](docs/it.png)" in section
    assert "have 0.9 million parameters and were trained at 256 tokens" in " ".join(section.split())
    said = " ".join(section.split())
    assert (
        "its loss is lower at 1x; its loss at 4x does not differ significantly from that of "
        in said
    )
    assert (
        "its loss is higher at 16x, than that of ALiBi; it finds more needles at 4x and 16x."
        in said
    )
    # Both schemes are introduced before the table, and so are empty cells.
    before = said.partition("| scheme |")[0]
    assert "Scale-inv. p-RoPE is the paper's scheme. Scale-inv. spread" in before
    assert "Empty cells are not measured yet" in before


def test_the_step_at_which_a_training_begins_to_copy():
    through = replace(
        record("alibi", 0, (1.0, 1.0, 1.0)),
        training=TrainingCurve((1.5,) * 300 + (1.0,) * 200, (1.0,) * 500),
    )
    never = replace(
        record("rope", 0, (1.0, 1.0, 1.0)), training=TrainingCurve((1.5,) * 500, (1.0,) * 500)
    )
    table = passing_table([through, never, record("yarn", 0, (1.0, 1.0, 1.0))])
    # 31 of 50 steps at 1.0 and 19 at 1.5 have a mean below 1.2; YaRN is not trained itself.
    assert table.splitlines()[2:] == ["| ALiBi | 331 |", "| RoPE | never |"]


def test_the_readme_does_not_list_comparisons_that_one_seed_cannot_decide():
    section = readme_section(
        [size(LOSSES, NEEDLES, seeds=(0,))], figure="it.png", figures_at="docs"
    )
    assert "One seed does not decide" in " ".join(section.split())
    assert "compared with" not in section
