"""The gallery of schemes: its pictures, its table, and that the table sorts."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import find_browser, open_browser
from small_records import table

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.reporting.evidence import Size
from scale_invariant_attention.lab.reporting.scheme_gallery import anchor, gallery_and_pictures
from scale_invariant_attention.lab.reporting.scheme_pictures import (
    CONTEXT,
    TRAIN_LENGTH,
    built_for_picture,
    head_logits,
    scheme_picture,
    wavelengths,
)

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def logits(name):
    return head_logits(built_for_picture(schemes.entry(name)))


def losses_of(scheme, seed):
    return (1.5, 2.0, 2.5) if scheme == "rope" else (1.25, 1.0, 0.75)


@pytest.fixture(scope="module")
def page():
    return gallery_and_pictures(Size("mini", table(losses_of, seeds=(0,))))


def test_the_transform_in_the_picture_is_the_formula():
    [head] = logits("scale-invariant-p-rope")
    for distance, mean, deviation in zip(head.distances, head.means, head.deviations, strict=True):
        growth = 2 * math.log1p(distance / 10)
        assert mean == pytest.approx(-growth, rel=1e-12)
        assert deviation == pytest.approx(math.sqrt(1 + growth), rel=1e-12)


def test_a_query_scale_widens_the_band():
    [head] = logits("logn-rope")
    mean_log = math.lgamma(TRAIN_LENGTH + 1) / TRAIN_LENGTH
    assert head.deviations == pytest.approx([math.log(CONTEXT) / mean_log] * len(head.distances))


def test_heads_that_differ_have_lines_of_their_own():
    assert len(logits("alibi")) == len(logits("scale-invariant-spread")) == 4
    assert len(logits("nope")) == 1
    picture = ElementTree.fromstring(scheme_picture(schemes.entry("alibi")))  # noqa: S314
    assert len(picture.findall(f"{SVG}polyline")) == 4


def test_gates_of_a_half_halve_the_weight_per_token():
    [head] = logits("fox")
    expected = [-distance * math.log(2) for distance in head.distances]
    assert head.means == pytest.approx(expected, rel=1e-12)


def test_lines_end_with_the_segment():
    [head] = logits("infini-rope")
    assert TRAIN_LENGTH // 4 < head.distances[-1] < TRAIN_LENGTH // 2


def test_marks_are_the_wavelengths_of_rotating_pairs():
    turns = wavelengths(schemes.get("rope"))
    assert turns[0] == pytest.approx(2 * math.pi)
    assert turns[1] / turns[0] == pytest.approx(10_000 ** (1 / 32))
    assert wavelengths(schemes.get("nope")) == []


def test_every_scheme_has_its_section_and_a_picture(page):
    text, pictures = page
    headings = {anchor(it) for it in re.findall(r"^## (.*)$", text, re.MULTILINE)}
    linked = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(linked) == len(set(linked)) == len(schemes.names())
    assert set(linked) <= headings
    for name in schemes.names():
        entry = schemes.entry(name)
        assert entry.formula
        assert f"    {entry.formula}\n" in text
        assert f"(gallery/{name}.svg)" in text
        ElementTree.fromstring(pictures[f"{name}.svg"])  # noqa: S314
        assert "nan" not in pictures[f"{name}.svg"].lower()


def test_the_call_of_every_scheme_runs(page):
    text, _ = page
    calls = re.findall(r"`(schemes\.get\(.*\))`", text)
    assert len(calls) == len(schemes.names())
    for call in calls:
        eval(call, {"schemes": schemes})  # noqa: S307


def test_a_scheme_of_ones_own_takes_few_lines(page):
    """The tests of the documentation run them."""
    text, _ = page
    _, _, section = text.partition("## Add your own")
    lines = [line for line in section.splitlines() if line.startswith((">>>", "..."))]
    assert 10 < len(lines) < 40


def test_results_are_those_of_the_records(page):
    text, _ = page
    [row] = [line for line in text.splitlines() if line.startswith("| [RoPE](#rope)")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["2021", "1.500", "2.000", "2.500"]


@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
def test_a_click_on_a_header_sorts(tmp_path):
    cells = {"a": ("b", "1.5"), "b": ("c", ""), "c": ("a", "10.0 ± 0.1"), "d": ("d", "2")}
    rows = "".join(f"<tr><td>{name}</td><td>{loss}</td></tr>" for name, loss in cells.values())
    html = (
        "<!doctype html><meta charset='utf-8'><div class='sortable'></div><table><thead><tr>"
        f"<th>name</th><th>loss</th></tr></thead><tbody>{rows}</tbody></table><script>"
        f"{(ROOT / 'docs' / 'sort_tables.js').read_text()}</script>"
    )
    path = tmp_path / "page.html"
    path.write_text(html)
    names = "[...document.querySelectorAll('tbody tr')].map(it => it.cells[0].textContent).join('')"
    with open_browser(tmp_path / "profile") as tab:
        tab.open(path)
        seen = [
            tab.run(f"document.querySelectorAll('th')[{column}].click(); {names}")
            for column in (0, 1, 1)
        ]
        assert tab.complaints() == []
    # Rows without a number come last.
    assert seen == ["abcd", "bdac", "adbc"]
