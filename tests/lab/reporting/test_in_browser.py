"""The page in a real browser: its contents and controls, and that it requests nothing."""

import json
import math
from dataclasses import replace

import pytest
from browser import find_browser, open_browser
from explored_schedules import schedules
from small_records import record, table

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.lab.reporting.web_page import render_page
from scale_invariant_attention.lab.reporting.web_page._inputs import read_entries
from scale_invariant_attention.lab.reporting.web_page._page import MAIN
from scale_invariant_attention.theory import expected_range_mass, expected_range_negentropy

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="there is no Chromium: apt-get install chromium"
)

CHECKED = "#switches input[value='RoPE']"
# The chart of losses by length, which page.js made.
CHART = "charts.all.find(it => it.spec.name === 'loss-0')"


def losses_of(scheme, seed):
    place = schemes.names().index(scheme)
    return tuple(1 + 0.1 * place + 0.01 * seed + 0.2 * step for step in range(3))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for made in table(losses_of, seeds=(0, 1)):
        write_record(made, folder)
    path = folder / "index.html"
    path.write_text(render_page(read_entries([folder]), title="In a browser"))
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def opened(tab, page):
    """A freshly opened page, which must log nothing until the end."""
    tab.open(page)
    yield tab
    assert tab.complaints() == []
    assert tab.requests() == [page.as_uri()]


def test_sliders_give_what_theory_gives(opened):
    move = """
    for (const [name, value] of Object.entries(%s)) {
      const slider = document.getElementById(name);
      slider.value = value;
      slider.dispatchEvent(new Event("input", {bubbles: true}));
    }
    [...document.querySelectorAll("#explorer-values [data-value]")].map(
      it => [it.closest("tr").dataset.scheme, it.dataset.value, Number(it.dataset.exact)])
    """
    for sliders, setting in (
        (
            {"tau": 0, "context": 16, "recent": 9, "slope": -6},
            {"tau": 1.0, "length": 65_536, "recent": 1000, "slope": 2.0**-6},
        ),
        (
            {"tau": 2, "context": 10, "recent": 3, "slope": -2},
            {"tau": 100.0, "length": 1024, "recent": 10, "slope": 0.25},
        ),
    ):
        found = {
            (scheme, kind): value for scheme, kind, value in opened.run(move % json.dumps(sliders))
        }
        assert len(found) == 4 * 5
        for name, schedule in schedules(setting).items():
            length = setting["length"]
            mass = expected_range_mass(schedule, 0, length)
            near = expected_range_mass(schedule, 0, setting["recent"])
            assert found[name, "share"] == pytest.approx(near / mass, rel=1e-6)
            entropy = math.log(mass) - expected_range_negentropy(schedule, 0, length) / mass
            assert found[name, "entropy"] == pytest.approx(entropy, rel=1e-6)
            assert found[name, "tokens"] == pytest.approx(math.exp(entropy), rel=1e-6)
        shown = opened.run("document.querySelector('output[for=context]').textContent")
        assert shown == f"{setting['length']:,}"
        drawn = opened.run("charts.all.find(it => it.spec.name === 'explorer-decades').plot.data")
        share = expected_range_mass(schedule, 0, 10) / mass
        assert drawn[4][0] == pytest.approx(share, rel=1e-6)


def test_moving_a_slider_is_instant(opened):
    seconds = opened.run("""
    (() => {
      const slider = document.getElementById("context");
      const start = performance.now();
      for (let value = 4; value <= 20; value++) {
        slider.value = value;
        slider.dispatchEvent(new Event("input", {bubbles: true}));
      }
      return (performance.now() - start) / 17 / 1000;
    })()
    """)
    # Of what an eye takes for instant, 100 ms, a part, even on a busy machine.
    assert seconds < 0.05


def test_a_switch_hides_a_line_everywhere(opened):
    states = f"[{CHART}.plot.series[1].show, document.querySelector('tr[data-key=RoPE]').className]"
    assert opened.run(states) == [True, ""]
    opened.run(f'document.querySelector("{CHECKED}").click()')
    opened.settle()
    assert opened.run(states) == [False, "off"]
    opened.run("document.querySelector('[data-all=off]').click()")
    assert not opened.run(f"{CHART}.plot.series.slice(1).some(it => it.show)")
    opened.run("document.querySelector('[data-all=on]').click()")
    assert opened.run(states) == [True, ""]


def test_pointer_and_keys_read_values(opened):
    opened.run(f"{CHART}.place.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = opened.run(f"{CHART}.plot.over.getBoundingClientRect().toJSON()")
    opened.point(box["right"] - 20, box["top"] + 50)
    told = opened.run(f"{CHART}.tip.hidden ? '' : {CHART}.tip.innerText")
    lines = told.splitlines()
    assert lines[0] == "context length in tokens: 4,096"
    # The highest first, as it lies: the mean of two seeds.
    highest = max(MAIN, key=lambda it: losses_of(it, 0)[2])
    mean = sum(losses_of(highest, seed)[2] for seed in (0, 1)) / 2
    assert "".join(lines[1].split("\t")[-1:]) == f"{mean:.3f}".rstrip("0")
    opened.point(1, 1)
    assert opened.run(f"{CHART}.tip.hidden")
    opened.run(f"{CHART}.place.focus({{preventScroll: true}})")
    opened.press("ArrowRight", 39)
    opened.press("ArrowRight", 39)
    status = opened.run(f"{CHART}.status.textContent")
    assert status.startswith("context length in tokens 1,024: ")
    assert f"RoPE {sum(losses_of('rope', s)[1] for s in (0, 1)) / 2:.4g}" in status


def test_axes_panels_and_the_table_behind_a_chart(opened):
    control = f"{CHART}.figure.querySelector('[data-control=log-%s]').click()"
    assert opened.run(f"{CHART}.plot.scales.x.distr") == 3
    opened.run(control % "x")
    opened.run(control % "y")
    assert opened.run(f"[{CHART}.plot.scales.x.distr, {CHART}.plot.scales.y.distr]") == [1, 3]
    opened.run(f"{CHART}.figure.querySelector('details.data').open = true")
    opened.settle()
    cells = opened.run(
        f"[...{CHART}.figure.querySelectorAll('.data tr')].map(it => it.innerText.split('\\t'))"
    )
    assert cells[0][:2] == ["context length in tokens", "RoPE"]
    assert [row[0] for row in cells[1:]] == ["256", "1,024", "4,096"]
    assert cells[1][1] == "1.005"
    training = "charts.all.find(it => it.spec.name === 'training-0')"
    before = opened.run(f"{training}.plot.data[1]")
    opened.run(f"""{{
      const select = {training}.figure.querySelector("select");
      select.value = "1";
      select.dispatchEvent(new Event("change"));
    }}""")
    assert opened.run(f"{training}.plot.data[1]") == [2.0] != before


def test_dark_and_light_by_system_and_by_button(tab, page):
    back = "getComputedStyle(document.body).backgroundColor"
    swatch = "getComputedStyle(document.querySelector('.on-dark')).display"
    tab.open(page, dark=True)
    assert (tab.run(back), tab.run(swatch)) == ("rgb(20, 23, 27)", "inline")
    tab.run("document.getElementById('theme').click()")
    assert (tab.run(back), tab.run(swatch)) == ("rgb(255, 255, 255)", "none")
    tab.resize(1100, dark=False)
    tab.run("document.getElementById('theme').click()")
    assert (tab.run(back), tab.run(swatch)) == ("rgb(20, 23, 27)", "inline")
    # The button names what a click gives.
    assert tab.run("document.getElementById('theme').textContent") == "Light"
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [320, 768])
def test_no_page_scrolls_sideways(tab, page, width):
    tab.open(page, width)
    tab.run("document.querySelectorAll('details').forEach(it => { it.open = true; })")
    tab.settle()
    assert tab.run("document.documentElement.scrollWidth") <= width
    widths = tab.run("charts.all.map(it => [it.plot.width, it.place.clientWidth])")
    assert all(plot == place for plot, place in widths)
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [390, 1200])
def test_the_legend_stays_on_the_page(tab, tmp_path, width):
    """All of it, or what remains of a long one when it is scrolled down, never sideways."""
    long = "a run with a name that is longer than the lines of most windows" + ", and longer" * 10
    for number, name in enumerate((f"{long} 1", f"{long} 2", "short")):
        made = record("rope", 0, losses_of("rope", 0), changes={"steps": 1500 + number // 2})
        write_record(replace(made, name=name), tmp_path)
    for made in table(losses_of, seeds=(1,)):
        write_record(made, tmp_path)
    path = tmp_path / "index.html"
    path.write_text(render_page(read_entries([tmp_path]), title="A legend"))
    tab.open(path, width)
    outside = tab.run("""
    [...document.querySelectorAll("#switches label, #switches button")].filter(it => {
      it.scrollIntoView({block: "nearest", inline: "nearest", behavior: "instant"});
      const box = it.getBoundingClientRect(), legend = it.closest("fieldset").getBoundingClientRect();
      return box.left < 0 || box.right > innerWidth || box.bottom > legend.bottom + 1;
    }).map(it => it.textContent)
    """)
    assert outside == []
    sideways = "[...document.querySelectorAll('#switches, #switches *')]"
    assert tab.run(f"{sideways}.every(it => it.scrollWidth <= Math.max(it.clientWidth, 34))")
    # However many lines there are, most of the window is left to the charts.
    assert tab.run("document.getElementById('switches').offsetHeight < innerHeight / 3")


def test_ticks_are_exact_and_tell_neighbours_apart(opened):
    ticks = "charts.ticks(%s)"
    assert opened.run(ticks % "[256, 1024, 16384]") == ["256", "1,024", "16,384"]
    assert opened.run(ticks % "[65536, 131072]") == ["65,536", "131,072"]
    assert opened.run(ticks % "[3.2812, 3.2814, 3.2816]") == ["3.2812", "3.2814", "3.2816"]
    assert opened.run(ticks % "[2.25, 2.5, 2.75, 3]") == ["2.25", "2.5", "2.75", "3"]
    assert opened.run(ticks % "[0, 0.1, 0.2, 0.30000000000000004]") == ["0", "0.1", "0.2", "0.3"]
    assert opened.run(ticks % "[0.0001, 0.01, 1, 100]") == ["1e-4", "0.01", "1", "100"]
    assert opened.run(ticks % "[null, 1]") == ["", "1"]
    shown = opened.run(f"{CHART}.plot.axes[0]._values")
    assert {"256", "1,024", "4,096"} <= set(shown)


def test_no_word_of_a_header_is_broken(tab, page):
    tab.open(page, width=360)
    broken = tab.run("""
    [...document.querySelectorAll("thead th")].flatMap(cell => {
      const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), words = [];
      for (let node = walk.nextNode(); node; node = walk.nextNode())
        for (const word of node.data.matchAll(/[\\w()]+/g)) {
          const range = document.createRange();
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          if (new Set([...range.getClientRects()].map(it => it.top)).size > 1) words.push(word[0]);
        }
      return words;
    })
    """)
    assert broken == []


def test_every_control_has_a_name_and_every_picture_a_text(opened):
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "checkbox", "slider", "combobox", "link", "image", "img", "table", "region"}
    found = [it for it in nodes if it.get("role", {}).get("value") in named and not it["ignored"]]
    roles = {it["role"]["value"] for it in found}
    assert {"button", "checkbox", "slider", "combobox", "table", "region"} <= roles
    assert roles & {"image", "img"}
    for node in found:
        assert node.get("name", {}).get("value"), node


def test_the_policy_keeps_the_network_out(tab, page):
    tab.open(page)
    blocked = tab.run("""new Promise(done => {
      document.addEventListener("securitypolicyviolation", it => done(it.effectiveDirective));
      fetch("http://127.0.0.1:9/").catch(() => {});
    })""")
    assert blocked == "connect-src"


def test_without_runs_the_explorer_is_there_alone(tab, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(render_page([], title="Explorer"))
    tab.open(path)
    assert tab.complaints() == []
    assert tab.run("charts.all.length") == 3
    assert tab.run("document.getElementById('switches')") is None
    assert tab.run("document.querySelector('[data-scheme=Plain] [data-value=share]').textContent")


def test_paper_is_light_and_whole(opened):
    opened.run("document.getElementById('theme').click(); dispatchEvent(new Event('beforeprint'))")
    opened.settle()
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.run("charts.all.every(it => it.plot.width <= 640)")
    opened.run("dispatchEvent(new Event('afterprint'))")
    opened.settle()
    assert opened.run("document.documentElement.dataset.theme") == "dark"


def test_inside_another_page_it_is_as_high_as_its_content_and_follows_its_theme(tab, tmp_path):
    (tmp_path / "explorer.html").write_text(render_page([], title="Explorer"))
    outside = tmp_path / "outside.html"
    outside.write_text(
        "<!doctype html><script>heights = []; onmessage = ({ data, source }) => {"
        "if (data.ready) source.postMessage({ theme: 'dark' }, '*');"
        "if (data.height) heights.push(data.height); }</script>"
        "<iframe src='explorer.html' width='900' height='300'></iframe>"
    )
    tab.open(outside)
    look = "const look = () => heights.length ? done(heights.at(-1)) : setTimeout(look, 50);"
    assert tab.run(f"new Promise(done => {{ {look} look(); }})") > 900
    assert tab.complaints() == []
