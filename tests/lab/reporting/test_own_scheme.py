"""A scheme that a user registers is drawn and described without changes elsewhere."""

import json
import re

import pytest
from own_schemes import OWN, own_scheme
from small_records import record, table

from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.lab.reporting.evaluation_figures import training_figure
from scale_invariant_attention.lab.reporting.evidence import Evidence, Size
from scale_invariant_attention.lab.reporting.reproduction import page_and_figures
from scale_invariant_attention.lab.reporting.web_page import write_report

LOSSES = (1.25, 1.5, 1.75)


@pytest.fixture(autouse=True)
def registered():
    with own_scheme():
        yield


def test_figures_draw_it_with_its_title_and_line_style():
    axes = training_figure([record(OWN.name, 0, LOSSES)], [OWN.name]).axes[1]
    [line] = [it for it in axes.get_lines() if it.get_label() == OWN.title]
    assert (line.get_color(), line.get_linestyle(), line.get_marker()) == ("#123456", "-.", "h")


def test_tables_have_its_row():
    page, _ = page_and_figures(
        Evidence(Size("mini", table(lambda scheme, seed: LOSSES, seeds=(0,))))
    )
    assert "| ALiBi+RoPE | 1.250 | 1.500 | 1.750 | +0.500 |  |  |  |  |" in page


def test_the_report_shows_its_row_its_line_and_its_sentence(tmp_path):
    for scheme in ("rope", OWN.name):
        write_record(record(scheme, 0, LOSSES), tmp_path)
    page = write_report([tmp_path], tmp_path).read_text()
    assert f"<h3>{OWN.title}</h3>" in page
    assert f"<p>{OWN.sentence}</p>" in page
    assert re.search(r'<th scope="row">ALiBi\+RoPE</th><td>1.250</td>', page)
    [text] = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page)
    look = json.loads(text)["looks"][OWN.title]
    assert (look["light"], look["dark"], look["dash"]) == ("#123456", "#abcdef", [10, 4, 2, 4])
