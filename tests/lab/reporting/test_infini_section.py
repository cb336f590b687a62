"""Table 3 in REPRODUCTION.md: our rows by segment length, beside the paper's figures."""

from small_records import record

from scale_invariant_attention.lab.records import TrainingRecord
from scale_invariant_attention.lab.reporting import paper
from scale_invariant_attention.lab.reporting._claims import INFINI_CLAIMS
from scale_invariant_attention.lab.reporting._infini import infini_section
from scale_invariant_attention.lab.reporting.evidence import Evidence, Size
from scale_invariant_attention.lab.reporting.reproduction import page_and_figures
from scale_invariant_attention.lab.seeds import scheme_of, seed_rows

TABLE1 = [
    record(name, seed, (start + 0.01 * seed, end, end))
    for name, start, end in (("rope", 1.2, 3.0), ("scale-invariant-p-rope", 1.1, 1.0))
    for seed in (0, 1, 2)
]
TABLE3 = [
    record(name, seed, (1.3 + 0.01 * seed, 1.4, 1.5), **options)
    for name in ("infini-rope", "infini-p-rope")
    for options in ({}, {"segment_length": 32})
    for seed in (0, 1, 2)
]
OTHERS = seed_rows(TABLE1, scheme_of, TrainingRecord.losses_by_length)


def row(section, head):
    [line] = [it for it in section.splitlines() if it.startswith(f"| {head} |")]
    return line.replace("\N{NO-BREAK SPACE}", " ")


def test_rows_stand_beside_the_paper():
    section = infini_section(TABLE3, OTHERS)
    assert row(section, "Infini-RoPE, segments of 128") == (
        "| Infini-RoPE, segments of 128 | 1.310 ± 0.006 | 1.400 ± 0.000 | 1.500 ± 0.000 | +0.190 "
        "| 3.296 ± 0.003 | 3.302 ± 0.004 | 3.310 ± 0.008 | +0.014 |"
    )
    assert row(section, "Infini-p-RoPE, segments of 32").endswith("|  |  |  |  |")
    assert row(section, "RoPE").endswith(
        "| 3.261 ± 0.001 | 3.936 ± 0.010 | 5.260 ± 0.014 | +1.999 |"
    )
    assert row(section, "Scale-inv. p-RoPE").count("**") == 12
    assert "mean and standard error over 3 seeds" in section


def test_its_claims_are_judged():
    section = infini_section(TABLE3, OTHERS)
    assert "| Infini-RoPE pays at the training length | -0.035 | -0.100 ± 0.000 | yes |" in (
        section.replace("\N{NO-BREAK SPACE}", " ")
    )
    assert section.count("| yes |") == 6


def test_the_papers_own_numbers_satisfy_its_claims():
    for claim in INFINI_CLAIMS:
        (lower, at), (higher, over) = claim.lower, claim.higher
        assert paper.TABLE3[lower][at] < paper.TABLE3[higher][over], claim


def test_what_is_not_recorded_is_left_out():
    assert infini_section([], OTHERS) == ""
    alone = infini_section(TABLE3[:1], {})
    assert "| Infini-RoPE, segments of 128 | 1.300 |" in alone
    assert "| RoPE |" not in alone
    [claim] = [line for line in alone.splitlines() if "not decided: one seed" in line]
    assert claim.startswith("| Infini-RoPE gets a little worse with length |")


def test_the_page_has_it_after_table_2():
    page, _ = page_and_figures(Evidence(Size("mini", TABLE1), infini=TABLE3))
    assert page.index("## Table 1") < page.index("## Table 3: Infini-attention")
    assert "\n18 records of 18 trainings" in page
