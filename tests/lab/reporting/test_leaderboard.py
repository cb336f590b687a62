"""The leaderboard page: ranks, intervals, verdicts, and what is not recorded yet."""

import pytest
from own_schemes import OWN, own_scheme
from small_records import task_record

from scale_invariant_attention.lab.experiments.leaderboard import DISCIPLINES
from scale_invariant_attention.lab.reporting.leaderboard import (
    Contest,
    contests,
    leaderboard_page,
    standings,
    verdicts,
)

SPREAD = "scale-invariant-spread"


def of(task, scores, seeds=(0, 1, 2)):
    """Records of a task: scores by scheme, a little better with every seed if shares."""
    return [
        task_record(task, scheme, seed, [it + 0.01 * seed for it in its])
        for scheme, its in scores.items()
        for seed in seeds
    ]


COPY = of(
    "copy",
    {
        "rope": (0.97, 0.3, 0.1, 0.1),
        "alibi": (0.9, 0.9, 0.5, 0.4),
        SPREAD: (0.95, 0.95, 0.9, 0.8),
        "nope": (0.97, 0.1, 0.1, 0.3),
    },
)
NOISE = of(
    "fractal-noise",
    {"alibi": (0.01, 0.02, 0.02, 0.02), SPREAD: (0.01, 0.03, 0.05, 0.2)},
)


def section(page, title):
    return page.replace("\N{NO-BREAK SPACE}", " ").split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_schemes_are_ranked_by_their_scores_beyond_the_training_length():
    # RoPE and NoPE have the same mean beyond it, and the scores at it do not count.
    assert Contest("copy", COPY).ranks == {SPREAD: 1, "alibi": 2, "rope": 3.5, "nope": 3.5}
    # A loss is the better, the lower it is.
    assert Contest("fractal-noise", NOISE).ranks == {"alibi": 1, SPREAD: 2}


def test_standings_are_sorted_by_the_number_of_tasks_and_the_mean_rank():
    found = standings(contests([*COPY, *NOISE]))
    assert [(it.scheme, it.mean_rank, len(it.ranks)) for it in found] == [
        ("alibi", 1.5, 2),
        (SPREAD, 1.5, 2),
        ("rope", 3.5, 1),
        ("nope", 3.5, 1),
    ]
    assert {it.minutes for it in found} == {4.0}


def test_a_scheme_that_shares_a_training_has_no_cost_of_its_own():
    found = standings(contests(of("copy", {"yarn": (1, 1, 1, 0.5)}, seeds=(0,))))
    assert [it.minutes for it in found] == [None]


def test_tables_have_scores_and_whole_examples_by_length():
    page = leaderboard_page(COPY)
    lines = section(page, "Copy").splitlines()
    header = "| scheme | 64 | 256 | 1,024 | 4,096 | all right, 64 | all right, 256 |"
    assert any(line.startswith(header) and line.endswith("| rank |") for line in lines)
    first = next(line for line in lines if "Scale-inv. spread" in line)
    assert "| **0.910 ± 0.006** | **0.810 ± 0.006** |" in first and first.endswith("| 1 |")
    # Sorted by rank.
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert names == ["Scale-inv. spread", "ALiBi", "RoPE", "NoPE"]
    assert "chance is 0.0312" in " ".join(section(page, "Copy").split())


def test_a_single_seed_has_the_interval_of_its_examples():
    one = of("copy", {"rope": (1, 0.5, 0.2, 0.1)}, seeds=(0,))
    noise = of("motifs", {"rope": (0.1, 0.2, 0.3, 0.4)}, seeds=(0,))
    page = leaderboard_page([*one, *noise])
    assert "| 0.500 (0.100 to 0.900) |" in section(page, "Copy")
    assert "| 0.200 (± 0.010 over examples) |" in section(page, "Motifs")
    assert "with 1 seed each" in " ".join(page.split())


def test_verdicts_say_what_the_transform_does_not_help_with():
    found = {it.task: it for it in verdicts(contests([*COPY, *NOISE]))}
    assert (found["copy"].rival, found["copy"].text) == ("alibi", "better")
    assert found["copy"].difference.mean == pytest.approx(0.4)
    assert (found["fractal-noise"].rival, found["fractal-noise"].text) == ("alibi", "worse")
    single = [it for it in COPY if it.seed == 0]
    assert [it.text for it in verdicts(contests(single))] == ["one seed"]
    page = leaderboard_page([*COPY, *NOISE])
    assert "| fractal-noise | ALiBi | -0.180 ± 0.000 | **worse** |" in section(
        page, "What the transform helps with"
    )
    # The paper's scheme has the transform too, and is no rival.
    paper = of("copy", {"scale-invariant-p-rope": (0.9, 0.9, 0.9, 0.9)})
    assert verdicts(contests([*COPY, *paper]))[0].rival == "alibi"


def test_neither_one_seed_nor_a_scheme_of_a_user_displaces_a_decided_verdict():
    one = of("copy", {"yarn": (1, 1, 1, 1)}, seeds=(0,))
    with own_scheme():
        theirs = of("copy", {OWN.name: (0.9, 0.9, 0.9, 0.9)})
        [verdict] = verdicts(contests([*COPY, *one, *theirs]))
    assert (verdict.rival, verdict.text) == ("alibi", "better")


def test_the_page_is_readable_without_records():
    page = leaderboard_page([])
    assert "Nothing is recorded yet" in page and "sia reproduce leaderboard\n" in page
    assert page.count("Not recorded yet.") == len(DISCIPLINES)
    assert "What the transform helps with" not in page and "None" not in page


def test_the_page_says_what_is_missing():
    page = " ".join(leaderboard_page(COPY).split())
    assert "Not recorded yet: p-RoPE, RoPE+NTK, YaRN, " in page
    assert "3.5 (1 of 10 tasks)" in page
    assert page.count("Not recorded yet.") == len(DISCIPLINES) - 1


def test_tasks_with_options_or_steps_of_their_own_say_so():
    page = leaderboard_page([])
    recall = " ".join(section(page, "Multi-token recall").split())
    assert "Options of the task: `key_letters` 256, `key_length` 1, `density` 0.15." in recall
    assert "Trained for 1,000 steps." in recall
    assert "Options" not in section(page, "Copy") and "steps" not in section(page, "Copy")


def test_a_registered_scheme_has_its_row():
    with own_scheme():
        page = leaderboard_page([*COPY, *of("copy", {OWN.name: (0.9, 0.9, 0.9, 0.9)})])
        assert "| ALiBi+RoPE | 1.0 (1 of 10 tasks) |" in section(page, "Standings")
