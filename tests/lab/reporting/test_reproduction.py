"""REPRODUCTION.md: its tables, figures and sentences from small records."""

import pytest
from small_records import record, table

from scale_invariant_attention.lab.reporting.evidence import Evidence, Size
from scale_invariant_attention.lab.reporting.reproduction import page_and_figures, with_section


def losses_of(scheme, seed):
    rise = 0.0 if scheme in ("alibi", "scale-invariant-p-rope") else 1.0
    start = 1.2 - 0.1 * (scheme == "scale-invariant-p-rope") + 0.01 * seed
    return (start, start + rise, start + 2 * rise)


@pytest.fixture(scope="module")
def made():
    main = table(losses_of)
    ours = [it for it in main if it.scheme == "scale-invariant-p-rope"]
    swept = [
        record("scale-invariant-p-rope", 0, (1.3, 1.4, 1.5), tau=0.1),
        record("scale-invariant-p-rope", 0, (1.6, 1.7, 1.8), tau=100.0),
    ]
    sweeps = {"tau": [*ours, *swept], "base": ours}
    short = Size("mini-500", main)
    return page_and_figures(Evidence(Size("mini", main), short=short, sweeps=sweeps))


def lines(page, start, section="## Table 1: "):
    """The lines of a section that start with these words."""
    part = page.split(section)[1].split("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith(start)]


def test_every_scheme_stands_beside_the_paper(made):
    page, _ = made
    rope, _ = lines(page, "| RoPE |")
    # A mean and its error are never broken over two lines.
    assert " ± " not in page
    assert rope.replace("\N{NO-BREAK SPACE}", " ") == (
        "| RoPE | 1.210 ± 0.006 | 2.210 ± 0.006 | 3.210 ± 0.006 | +2.000 "
        "| 3.261 ± 0.001 | 3.936 ± 0.010 | 5.260 ± 0.014 | +1.999 |"
    )
    ours, _ = lines(page, "| Scale-inv. p-RoPE |")
    assert ours.count("**") == 12
    ablation, _ = lines(page, "| Scale-inv. NoPE |")
    assert ablation.endswith("|  |  |  |  |")


def test_the_text_fits_the_schemes_that_are_recorded(made):
    page = " ".join(made[0].split())
    assert "NTK and YaRN change nothing up to the training length" in page
    assert "Not yet trained at this scale" not in page
    assert "Lowest here: Scale-inv. p-RoPE at all 3 lengths." in page
    assert "The median training of Table 1 took 4.0 minutes" in page
    few = [record(name, 0, losses_of(name, 0)) for name in ("rope", "scale-invariant-p-rope")]
    page = " ".join(page_and_figures(Evidence(Size("mini", few)))[0].split())
    assert "NTK and YaRN change nothing" not in page
    assert "Not yet trained at this scale: p-RoPE; NoPE; RoPE+NTK; YaRN;" in page


def test_both_rules_of_significance_are_explained_where_the_first_is_used():
    few = [
        record(name, seed, losses_of(name, seed))
        for seed in (0, 1)
        for name in ("rope", "scale-invariant-p-rope", "scale-invariant-spread")
    ]
    page = " ".join(page_and_figures(Evidence(Size("mini", few)))[0].split())
    assert "more than 2 standard errors; for the claims of the paper" in page
    assert "which with three seeds takes 4.3 standard errors" in page


def test_differences_in_scale_are_listed(made):
    page, _ = made
    assert "| parameters | 0.85 million | 162 million |" in page
    assert "| heads | 4 of 32 | 6 of 128 |" in page
    assert "| training | 1,500 steps of 4,096 tokens | 4,578 steps of 524,288 tokens |" in page
    assert "| base of p-RoPE | 16 | 1024 |" in page


def test_a_sweep_compares_the_seeds_that_all_values_have(made):
    page, figures = made
    assert "| 0.1 | 1.300 | 1.400 | 1.500 |\n| 10 | 1.100 | 1.100 | 1.100 |\n| 100 | 1.600" in page
    assert "Seeds: 0." in page
    assert "# The base of p-RoPE" not in page
    names = ("headline", "curves", "position", "tau")
    assert set(figures) == {f"reproduction-{name}.png" for name in names}
    for name, picture in figures.items():
        assert f"(docs/{name})" in page
        assert picture.startswith(b"\x89PNG")


def test_the_provenance_counts_each_training_once(made):
    page, _ = made
    # 18 of the 21 schemes are trained, with 3 seeds, and 2 more for the sweep.
    assert (
        "\n65 records of 56 trainings, each on one core (Processor), made since 2026-01-02" in page
    )
    # The commit of each is in its record.
    assert "c" * 40 not in page


def test_links_point_to_the_folder_of_the_figures():
    evidence = Evidence(Size("mini", table(losses_of, seeds=(0,))))
    page, figures = page_and_figures(evidence, figures_at="../pictures")
    assert len(figures) == 3
    assert all(f"(../pictures/{name})" in page for name in figures)


def test_without_our_scheme_there_is_no_page():
    with pytest.raises(ValueError, match="must include trainings of scale-invariant-p-rope"):
        page_and_figures(Evidence(Size("mini", [record("rope", 0, (1.0, 2.0, 3.0))])))


@pytest.mark.parametrize("page", ["", "<!-- results -->", "<!-- results -->" * 2])
def test_a_page_without_marks_has_no_place_for_results(page):
    with pytest.raises(ValueError, match="must contain <!-- results --> and"):
        with_section(page, "results", "new")
