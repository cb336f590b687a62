"""The page of encoders and images: tables by size, and verdicts that say what does not help too."""

import pytest
from small_records import image_record, masked_record

from scale_invariant_attention.lab.reporting.images import images_page, verdicts

SCORES = {
    "scale-invariant-nope": (0.90, 0.90, 0.85, 0.80),
    "scale-invariant-p-rope": (0.92, 0.91, 0.80, 0.70),
    "rope": (0.95, 0.60, 0.30, 0.10),
    "learned": (0.91, 0.50, 0.30, 0.20),
}


def of(task, scores, seeds=(0, 1, 2)):
    """Records of a task, a little better with every seed."""
    return [
        image_record(task, name, seed, [it + 0.01 * seed * (name == "rope") for it in its])
        for name, its in scores.items()
        for seed in seeds
    ]


def section(page, title):
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    return page.split(f" {title}\n")[1].split("\n#")[0]


def test_tables_have_scores_by_size_in_the_order_of_variants():
    page = images_page(of("digits", dict(reversed(SCORES.items()))), [])
    lines = section(page, "Digits among distractors").splitlines()
    header = "| scheme | 1x (6 x 6) | 2x (12 x 12) | 4x (24 x 24) | 8x (48 x 48) |"
    assert header in lines
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert names == [
        *("Scale-invariant", "Scale-invariant p-RoPE", "RoPE-2D, axial"),
        "Learned absolute, interpolated",
    ]
    assert "| **0.960 ± 0.006** |" in next(line for line in lines if "RoPE-2D" in line)
    assert "Not recorded yet." in section(page, "Textures")


def test_verdicts_compare_the_best_at_the_training_size_and_at_the_largest():
    small, large = verdicts(of("digits", SCORES), [])
    assert (small.size, small.ours, small.rival) == (6, "Scale-invariant p-RoPE", "RoPE-2D, axial")
    assert small.text == "worse" and small.difference.mean == pytest.approx(-0.04)
    assert (large.size, large.ours) == (48, "Scale-invariant")
    assert (large.rival, large.text) == ("Learned absolute, interpolated", "better")
    page = section(images_page(of("digits", SCORES), []), "What the transform helps with")
    assert "| -0.040 ± 0.006 | **worse** |" in page
    assert "| digits | 48 patches | Scale-invariant | Learned absolute, interpolated |" in page


def test_one_seed_displaces_no_verdict_of_several():
    one = of("digits", {"alibi": [1.0] * len(SCORES["rope"])}, seeds=(0,))
    found = verdicts([*of("digits", SCORES), *one], [])
    assert [it.rival for it in found] == ["RoPE-2D, axial", "Learned absolute, interpolated"]


def test_one_seed_and_one_side_decide_nothing():
    assert [it.text for it in verdicts(of("digits", SCORES, seeds=(0,)), [])] == ["one seed"] * 2
    assert verdicts(of("digits", {"rope": SCORES["rope"]}), []) == []


def test_masked_bytes_by_length():
    records = [masked_record(name, 0, (0.6, 0.5, 0.4)) for name in ("rope", "alibi")]
    lines = section(images_page([], records), "Masked bytes").splitlines()
    assert "| scheme | 128 | 512 | 2,048 |" in lines
    assert any(line.startswith("| ALiBi | 0.600 |") for line in lines)
    assert "No task is recorded both with the transform" in images_page([], records)
    assert "Nothing is recorded yet" in images_page([], [])
    ours = masked_record("scale-invariant-p-rope", 0, (0.5, 0.5, 0.5))
    small, large = verdicts([], [*records, ours])
    assert (small.task, small.size, small.text) == ("masked bytes", 128, "one seed")
    assert small.difference.mean == pytest.approx(-0.1)
    assert large.difference.mean == pytest.approx(0.1)
    page = section(images_page([], [*records, ours]), "What the transform helps with")
    assert "| masked bytes | 2,048 bytes | Scale-inv. p-RoPE | RoPE | 0.100 | one seed |" in page
