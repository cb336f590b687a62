"""The sections of REPRODUCTION.md on needles and recall."""

from small_records import needle_record, recall_record

from scale_invariant_attention.lab.reporting.reproduction import needle_section, recall_section


def needles(**shares_of):
    """The section for schemes with their shares, one tuple per seed."""
    return needle_section(
        [
            needle_record(scheme.replace("_", "-"), seed, shares)
            for scheme, seeds in shares_of.items()
            for seed, shares in enumerate(seeds)
        ]
    )


def row(section, title):
    (line,) = [line for line in section.splitlines() if line.startswith(f"| {title} |")]
    return line


def test_without_records_there_is_no_section():
    assert needle_section([]) == recall_section([]) == ""


def test_shares_stand_beside_the_papers_and_the_best_are_bold():
    said = needles(
        rope=[(1.0, 0.0, 0.0), (0.6, 0.1, 0.0)], scale_invariant_rope=[(0.75, 0.5, 0.25)] * 2
    )
    assert row(said, "RoPE") == (
        "| RoPE | **0.800 ± 0.200** | 0.050 ± 0.050 | 0.000 ± 0.000 | 0.962 | 0.000 | 0.000 |"
    )
    assert row(said, "Scale-inv. RoPE") == (
        "| Scale-inv. RoPE | 0.750 ± 0.000 | **0.500 ± 0.000** | **0.250 ± 0.000** |  |  |  |"
    )
    assert "mean and standard error over 2 seeds" in said


def test_the_recipe_is_taken_from_the_records():
    task = needles(rope=[(1.0, 0.0, 0.0)]).replace("\n", " ")
    assert "1 needle of 7 digits per text instead of 3 of 7" in task
    assert "grow from 80 bytes to 256 in the first 200 steps" in task
    assert "100 steps of warm-up, 100 constant, 100 of decay. 200 texts at each length." in task


def test_seeds_that_did_not_learn_the_task_are_named():
    said = needles(
        yarn=[(0.9, 0.0, 0.0)],
        nope=[(0.0, 0.0, 0.0), (0.02, 1.0, 1.0)],
        rope=[(1.0, 0.0, 0.0), (0.48, 0.0, 0.0)],
    )
    (line,) = [part for part in said.split("\n\n") if part.startswith("Below 0.9")]
    assert (
        line.replace("\n", " ")
        .strip()
        .endswith(
            "so the task was not learned: RoPE (0.48 in seed 1); NoPE (0.00 in seed 0, 0.02 in seed 1)."
        )
    )


def test_nothing_is_named_where_every_seed_learned_the_task():
    assert "was not learned" not in needles(rope=[(0.9, 0.0, 0.0)])


def test_recall_has_no_numbers_of_the_paper_and_states_chance_level():
    said = recall_section([recall_record("alibi", 0, (1.0, 0.5, 0.25))])
    assert row(said, "ALiBi") == "| ALiBi | 1.000 | 0.500 | 0.250 |"
    assert said.replace("\n", " ").endswith("One value in 4 is right by chance. ")
    unlearned = recall_section([recall_record("alibi", 2, (0.4, 0.5, 0.25))])
    assert unlearned.endswith("ALiBi (0.40 in seed 2).\n")
