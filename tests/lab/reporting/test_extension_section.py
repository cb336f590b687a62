"""The section on extended models, from small records: tables, goals, and the choice."""

import pytest
from small_records import conversion_record, table

from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.reporting._extension import (
    COST,
    cheap_and_lowest,
    extension_section,
    extension_summary,
    goals,
    lowest,
)
from scale_invariant_attention.lab.reporting.evidence import Evidence, Extensions, Size
from scale_invariant_attention.lab.reporting.reproduction import page_and_figures

OURS = {*extension.RECOMMENDED.values(), *extension.RECOMMENDED_TUNED.values()}
TITLES = {name: extension.VARIANTS[name].title for name in OURS}
# What the recommended extensions do better than all others, and what the seeds differ in.
GOOD = {256: 1.22, 1024: 1.3, 4096: 1.5}
OTHER = {256: 1.2, 1024: 1.4, 4096: 2.0}


def loss(trial):
    ours = trial.config.variant in OURS
    values, noise = GOOD if ours else OTHER, 0.01 * trial.config.seed * ours
    return [values[n] + noise for n in trial.evaluation.lengths]


def losses(values=loss, seeds=(0, 1, 2), names=()):
    trials = extension.reported_trials("mini", names, seeds)
    return [conversion_record(trial, values(trial)) for trial in trials]


def shares(build):
    return [conversion_record(it, (0.9, 0.5, 0.25)) for it in build("mini", (), (0, 1, 2))]


def lines(page, start):
    return [line for line in page.splitlines() if line.startswith(start)]


@pytest.fixture(scope="module")
def page():
    found = Extensions(
        losses(),
        [conversion_record(it, loss(it)) for it in extension.choice_trials()],
        shares(extension.string_trials),
        shares(extension.needle_trials),
    )
    return extension_section(found)


def test_every_share_has_a_table_of_all_families(page):
    assert page.count("| model | Llama, 1x | Llama, 4x | Llama, 16x | Qwen 3, 1x |") == 8
    for opening in ("Without any training:", "After 1 % of the tokens:", "After 10 % of the"):
        assert page.count(opening) == 1
    one = "1.230 ± 0.006 | **1.310 ± 0.006** | **1.510 ± 0.006**"
    for title in TITLES.values():
        assert f"| {title} | {one} | {one} | {one} |" in page
    # A factor of 4 is not measured at 16 times the length.
    assert "| model | Llama, 1x | Llama, 4x | Qwen 3, 1x | Qwen 3, 4x | GPT-NeoX, 1x" in page
    # Rows of Table 4 alone are not repeated.
    assert "| NoPE |" not in page


def test_tables_come_before_verdicts(page):
    assert page.index("Without any training:") < page.index("### Goals")
    assert page.index("### Goals") < page.index("### How rotary and tau were chosen")


def test_goals_are_met_family_by_family(page):
    below = lines(page, "| 0.3 nats below YaRN at 16x, untrained")
    assert len(below) == 3
    assert below[0].endswith("| Llama | YaRN | -0.490 ± 0.006 | -0.3 | met |")
    [cost, *_] = lines(page, "| at most 0.03 at 1x")
    assert cost.endswith("| RoPE, as trained | 0.030 ± 0.006 | +0.03 | not decided |")
    assert [it.verdict for it in goals(losses())[6:]] == ["met"] * 6


@pytest.mark.parametrize(
    ("ours", "verdicts"),
    [
        # Far below YaRN, for nothing; then not far enough, too dear, and not the lowest.
        ({256: 1.2, 1024: 1.3, 4096: 1.5}, {"met"}),
        ({256: 1.4, 1024: 1.6, 4096: 2.1}, {"**missed**"}),
    ],
)
def test_verdicts_follow_the_records(ours, verdicts):
    def values(trial):
        mine = ours if trial.config.variant in OURS else OTHER
        return [mine[n] + 0.001 * trial.config.seed for n in trial.evaluation.lengths]

    assert {it.verdict for it in goals(losses(values))} == verdicts


def test_the_better_of_two_yarns_is_the_rival():
    def values(trial):
        better = 0.3 * (trial.config.variant == "yarn-by-length")
        return [it - better for it in loss(trial)]

    [first, *_] = goals(losses(values))
    assert first.against == "YaRN by length" and first.verdict == "**missed**"


def test_the_transform_is_no_rival_of_its_own():
    def values(trial):
        config = trial.config
        own = config.variant in OURS - {extension.recommended(config.family, config.share)}
        return [it - own for it in loss(trial)]

    assert {it.verdict for it in goals(losses(values))[6:]} == {"met"}


def test_one_seed_decides_nothing():
    assert {it.verdict for it in goals(losses(seeds=(0,)))} == {"not decided: one seed"}


def test_strings_and_needles_have_tables(page):
    untrained, tuned = (
        TITLES[extension.recommended("llama", share)] for share in (0.0, extension.SHARES[-1])
    )
    found = "0.900 ± 0.000 | 0.500 ± 0.000 | 0.250 ± 0.000 |"
    strings, needles = page.index("### Repeated strings"), page.index("### Needles")
    assert strings < page.index(f"| {untrained} | {found}") < needles
    assert needles < page.index(f"| {tuned} | {found}")
    assert f"| {untrained} | 2.100 ± 0.000 | 2.500" in page


def choices(cost):
    """Candidates whose loss at 1x and gain beyond it `cost` gives, relative to the model as trained."""
    found = []
    for trial in extension.choice_trials():
        more = cost.get(trial.config.variant, 0.0)
        found.append(conversion_record(trial, (1.2 + more, 2.0 - more, 3.0 - 2 * more)))
    return [it for it in found if it.config.share == 0 and it.config.factor == 16]


def test_the_choice_is_the_lowest_that_is_cheap_enough():
    # YaRN alone is compared, and is no candidate.
    cost = {
        "yarn-alone": COST - 0.005,
        "slow-tau-1": 3 * COST,
        "slow-tau-10": COST - 0.01,
        "slow-tau-30": 0.005,
    }
    assert cheap_and_lowest(choices(cost)) == "slow-tau-10"
    dear = {name: 1.0 for name in extension.CHOICES if name != extension.BASELINE}
    assert cheap_and_lowest(choices(dear)) is None


def test_a_family_is_chosen_for_by_its_own_records():
    mine = [it for it in choices({"own-tau-10": 0.02}) if it.config.family == "llama"]
    others = [it for it in choices({"slow-tau-3": 0.02}) if it.config.family != "llama"]
    assert cheap_and_lowest(mine) == "own-tau-10"
    said = " ".join(extension_section(Extensions(losses(), [*mine, *others])).split())
    assert "It picks own, tau 10 (Llama); slow, tau 3 (Qwen 3 and GPT-NeoX)." in said


def test_the_lowest_is_recorded_for_every_model():
    found = choices({"slow-tau-3": 0.2, "slow-tau-10": 0.1})
    assert lowest(found) == "slow-tau-3"
    some = [it for it in found if it.config.variant != "slow-tau-3" or it.config.family == "llama"]
    assert lowest(some) == "slow-tau-10"


def test_the_page_says_how_it_was_chosen(page):
    said = " ".join(page.split())
    assert "Candidates with seed 3, which the tables do not use" in said
    assert "after the first 65,536 tokens" in said and "It picks" in said
    assert "With factor 4, fine-tuned for 0% of the tokens:" in said


def test_nothing_is_shown_without_records():
    assert extension_section(Extensions()) == ""
    assert extension_section(Extensions(losses(names=("rope", "yarn")))) == ""
    main = table(lambda scheme, seed: (1.0, 2.0, 3.0), seeds=(0,))
    empty, _ = page_and_figures(Evidence(Size("mini", main)))
    assert "Extending a trained model" not in empty
    whole, _ = page_and_figures(Evidence(Size("mini", main), extensions=Extensions(losses())))
    assert whole.index("## Extending a trained model") < whole.index("## The paper's scale")
    assert "### Repeated strings" not in whole and "How rotary and tau" not in whole


def test_the_readme_compares_with_yarn_at_the_ends():
    # Qwen 3 has one seed of YaRN: its rows are of that seed alone.
    found = [
        it
        for it in losses()
        if it.seed == 0 or (it.config.family, it.config.variant) != ("qwen3", "yarn")
    ]
    shown = extension_summary(Extensions(found))
    assert "| loss | Llama, 1x | Llama, 16x | Qwen 3, 1x |" in shown
    assert lines(shown, "| YaRN by length |") == ["| YaRN by length |" + " 1.200 | 2.000 |" * 3]
    others = " 1.230 | 1.510 |"
    assert lines(shown, "| the transform |") == [
        f"| the transform |{others} 1.220 | 1.500 |{others}"
    ]
    assert "mean over 1 to 3 seeds" in shown
    assert extension_summary(Extensions()) == ""


@pytest.mark.parametrize(("share", "said"), [(0.2, True), (0.9, False)])
def test_a_test_that_models_have_not_learned_decides_nothing(share, said):
    strings = [
        conversion_record(it, (share, 0.5, 0.25))
        for it in extension.string_trials("mini", (), (0,))
    ]
    page = extension_section(Extensions(losses(), strings=strings))
    assert ("does not tell the extensions apart" in " ".join(page.split())) is said
