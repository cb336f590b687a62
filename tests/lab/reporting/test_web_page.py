"""The report page: its tables, charts and looks, and that no name can become markup."""

import json
import re
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from statistics import mean, stdev

import pytest
from small_records import LENGTHS, conversion_record, needle_record, record, table

from scale_invariant_attention import schemes
from scale_invariant_attention.evaluation import LengthLoss
from scale_invariant_attention.lab.experiments import extension
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.records import write_record
from scale_invariant_attention.lab.reporting.drawing import style
from scale_invariant_attention.lab.reporting.web_page import render_page, write_report
from scale_invariant_attention.lab.reporting.web_page._entries import (
    Entry,
    MeasuredOn,
    Measurement,
    StepLoss,
)
from scale_invariant_attention.lab.reporting.web_page._inputs import read_entries
from scale_invariant_attention.lab.reporting.web_page._parts import (
    DASHES,
    FURTHER,
    scheme_look,
)
from scale_invariant_attention.lab.reporting.web_page._variants import variants_of

TITLES = {name: schemes.entry(name).title for name in schemes.names()}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028'\"&"


def losses_of(scheme, seed):
    """Different for each scheme and seed; scale-invariant p-RoPE is best except at the shortest."""
    index = schemes.names().index(scheme)
    base = 1.0 if scheme == "scale-invariant-p-rope" else 1.1 + 0.01 * index
    return tuple(
        base + 0.003 * seed + (0.5 if base == 1.0 and n == LENGTHS[0] else 0.0) for n in LENGTHS
    )


class Page(HTMLParser):
    """A page as a browser parses it: tables, scripts, styles, and all attributes."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.inline, self.attributes, self.text = {}, [], [], []
        self._table = self._row = self._cell = self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag == "table":
            self._table = self.tables.setdefault(given["aria-label"], [])
        elif tag == "tr":
            self._row = []
            self._table.append(self._row)
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag in ("script", "style"):
            self._inside = (tag, given, [])
            self.inline.append(self._inside)

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self._cell is not None:
            self._row.append(" ".join(self._cell.split()))
            self._cell = None
        elif tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data):
        if self._inside:
            self._inside[2].append(data)
        elif self._cell is not None:
            self._cell += data
        self.text.append(data)

    @property
    def data(self):
        [text] = [text for tag, given, text in self.inline if given.get("id") == "page-data"]
        return json.loads("".join(text))

    def table(self, start):
        return next(rows for label, rows in self.tables.items() if label.startswith(start))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Records of all schemes with three seeds, and a sweep."""
    folder = tmp_path_factory.mktemp("results")
    for made in table(losses_of):
        write_record(made, folder)
    for tau in (1.0, 100.0):
        changes = {"changes": {"scheme_options": {"base": 16.0, "tau": tau}}}
        made = record("scale-invariant-p-rope", 0, (2.0, 2.1, 2.0 + tau / 100), **changes)
        name = f"tau-{tau:g}"
        write_record(replace(made, name=name, trained_as=name), folder)
    return folder


@pytest.fixture(scope="module")
def page(results):
    return Page(render_page(read_entries([results]), title="A title"))


def test_rows_are_means_and_errors_over_seeds_with_the_best_marked(page):
    rows = page.table("Loss in nats")
    assert rows[0] == ["scheme", "256 (trained)", "1,024", "4,096"]
    assert [row[0] for row in rows[1:]] == list(TITLES.values())
    for row, scheme in zip(rows[1:], TITLES, strict=True):
        seeds = [losses_of(scheme, seed) for seed in (0, 1, 2)]
        for cell, values in zip(row[1:], zip(*seeds, strict=True), strict=True):
            expected = f"{mean(values):.3f} ± {stdev(values) / 3**0.5:.3f}"
            assert cell.removeprefix("★best: ") == expected
    best = [(row[0], place) for row in rows for place, it in enumerate(row) if "best" in it]
    assert best == [("RoPE", 1), ("Scale-inv. p-RoPE", 2), ("Scale-inv. p-RoPE", 3)]


def test_lines_have_the_values_of_the_table(page):
    [chart] = [it for it in page.data["charts"] if it["name"] == "loss-0"]
    lines = {line["key"]: line for line in chart["panels"][0]["lines"]}
    assert list(lines) == list(TITLES.values())
    values = [losses_of("yarn", seed)[2] for seed in (0, 1, 2)]
    assert lines["YaRN"]["x"] == list(LENGTHS)
    assert lines["YaRN"]["y"][2] == pytest.approx(mean(values), rel=1e-5)
    assert lines["YaRN"]["error"][2] == pytest.approx(stdev(values) / 3**0.5, rel=1e-5)
    assert chart["mark"] == [256, "training length"]


def test_a_sweep_stands_apart_and_compares_the_seeds_that_all_have(page):
    rows = page.table("Loss by tau, seeds 0")
    assert [row[0] for row in rows] == ["tau", "1", "10", "100"]
    assert rows[3][1:] == ["2.000", "2.100", "3.000"]
    ours = losses_of("scale-invariant-p-rope", 0)
    assert [cell.removeprefix("★best: ") for cell in rows[2][1:]] == [f"{it:.3f}" for it in ours]


def test_every_scheme_has_a_sentence_and_looks_as_in_figures(page):
    for scheme, title in TITLES.items():
        assert schemes.entry(scheme).sentence in "".join(page.text)
        look = page.data["looks"][title]
        assert look["light"] == style(scheme)["color"]
        assert look["dash"] == DASHES[style(scheme)["linestyle"]]
        assert len(look["marker"]) >= 3
    looks = {json.dumps(scheme_look(scheme)) for scheme in TITLES}
    assert len(looks) == len(TITLES)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_lines_and_text_stand_out_from_both_backgrounds():
    css = (
        files("scale_invariant_attention.lab.reporting.web_page") / "assets/page.css"
    ).read_text()
    themes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in css.split("}")[:2]]
    names = ("light", "dark")
    for place, theme in enumerate(themes):
        lines = [
            *({scheme_look(scheme)[names[place]] for scheme in TITLES}),
            *(it[place] for it in FURTHER),
        ]
        for line in lines:
            assert contrast(line, theme["back"]) >= 3, line
        for name in ("text", "muted", "accent", "warn"):
            assert contrast(theme[name], theme["back"]) >= 4.5, name
        assert contrast(theme["text"], theme["best"]) >= 4.5
    for back, text in re.findall(r"\.share-\d+ { background: (#\w{6}); color: (#\w{3}); }", css):
        assert contrast(back, text[0] + 2 * text[1:]) >= 4.5, back
    assert len(re.findall(r"\.share-\d+ {", css)) == 11


def hostile_entry():
    config = replace(record("rope", 0, (1.0, 2.0, 3.0)).config, scheme="hostile")
    losses = [LengthLoss(256, 1.0, None, 8), LengthLoss(512, 2.0, None, 8)]
    steps = [StepLoss(1, float("nan")), StepLoss(2, 1.0)]
    return Entry(
        name=HOSTILE,
        source=HOSTILE,
        config=config,
        origins=[{"cpu": HOSTILE}],
        state=HOSTILE,
        trained_as=HOSTILE,
        losses=Measurement(MeasuredOn(HOSTILE, HOSTILE, tokens=8), losses),
        training=Measurement(MeasuredOn(HOSTILE, task=HOSTILE), steps),
    )


@pytest.fixture
def hostile_scheme():
    """A scheme whose title and sentence try to be markup."""
    schemes.register(schemes.NamedScheme("hostile", schemes.Scheme, HOSTILE, HOSTILE))
    yield
    schemes.unregister("hostile")


@pytest.mark.usefixtures("hostile_scheme")
def test_names_cannot_become_markup_or_scripts():
    page = Page(render_page([hostile_entry()], title=HOSTILE))
    assert len(page.inline) == 2 + 1 + 5
    assert HOSTILE in page.data["looks"]
    tags = {tag for tag, _, _ in page.attributes}
    assert "img" not in tags
    assert not [it for it in page.attributes if it[1].startswith("on")]
    # A loss that is not a number leaves a gap.
    [chart] = [it for it in page.data["charts"] if it["name"] == "training-0"]
    assert chart["panels"][0]["lines"][0]["y"] == [None, 1.0]


def test_the_policy_allows_the_embedded_parts_and_nothing_else(page):
    [policy] = [
        value for _, name, value in page.attributes if name == "content" and "-src" in value
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag in ("script", "style"):
        hashes = [
            f"'sha256-{b64encode(sha256(''.join(text).encode()).digest()).decode()}'"
            for name, given, text in page.inline
            if name == tag and "id" not in given
        ]
        assert rules[f"{tag}-src"].split() == hashes
    links = [value for _, name, value in page.attributes if name in ("href", "src", "action")]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not [it for it in page.attributes if it[1] == "style" or it[1].startswith("on")]
    scripts = "".join(
        "".join(text) for name, given, text in page.inline if name == "script" and not given
    )
    assert not re.search(r"\beval\(|new Function|innerHTML|document\.write", scripts)


def test_many_runs_make_a_page_that_can_be_sent(results, page):
    text = render_page(read_entries([results]), title="A title")
    assert len(text) < 500_000
    assert f"{len(TITLES) * 3 + 2} runs of {len(TITLES)} schemes" in " ".join(
        "".join(page.text).split()
    )


def test_the_same_seed_twice_counts_once(results, tmp_path):
    copy = tmp_path / "again.json"
    copy.write_text((results / "rope-seed-0.json").read_text())
    entries = read_entries([results / "rope-seed-0.json", copy, results / "rope-seed-0.json"])
    assert len(entries) == 2
    assert [it.label for it in variants_of(entries)] == ["RoPE (rope-seed-0)", "RoPE (again)"]
    rows = Page(render_page(entries, title="x")).table("Loss in nats")
    # Where all are alike, none is best.
    assert [row[1] for row in rows[1:]] == ["1.100", "1.100"]


def test_measurements_on_different_text_are_not_compared(tmp_path):
    for name, corpus in (("rope-seed-0", "a" * 64), ("alibi-seed-0", "b" * 64)):
        made = record(name.removesuffix("-seed-0"), 0, (1.0, 2.0, 3.0))
        write_record(replace(made, corpus=corpus), tmp_path)
    found = Page(render_page(read_entries([tmp_path]), title="x"))
    names = [chart["name"] for chart in found.data["charts"]]
    assert {"loss-0", "loss-1", "position-0", "position-1"} <= set(names)
    assert "★" not in "".join(found.text)


def test_labels_of_variants_name_what_differs(tmp_path):
    for width in (128, 256):
        made = record("rope", 0, (1.0, 2.0, 3.0), changes={"width": width})
        write_record(replace(made, name=f"wide-{width}"), tmp_path)
    labels = [it.label for it in variants_of(read_entries([tmp_path]))]
    assert labels == ["RoPE", "RoPE, width 256"]


def test_tokens_that_were_skipped_and_splits_are_not_pooled(tmp_path):
    """The candidates of a choice are measured on other text than the tables, with another seed."""
    made = record("rope", 0, (1.0, 2.0, 3.0))
    write_record(made, tmp_path)
    after = LossEvaluation(LENGTHS, 131_072, skip=131_072)
    chosen = record("rope", 3, (1.5, 2.5, 3.5))
    write_record(replace(chosen, evaluation=after), tmp_path)
    found = [it.losses.on for it in read_entries([tmp_path])]
    assert found[0] != found[1]
    assert str(found[1]).endswith("131,072 tokens after the first 131,072")
    needles = needle_record("rope", 0, (1.0, 0.5, 0.0))
    hidden = replace(needles.evaluation, split="train")
    write_record(replace(needles, evaluation=hidden, name="chosen"), tmp_path)
    for seed in (0, 3):
        alibi = record("alibi", seed, (1.1, 1.2, 1.3))
        skipped = alibi if seed == 0 else replace(alibi, evaluation=after)
        write_record(skipped, tmp_path)
    text = " ".join("".join(Page(render_page(read_entries([tmp_path]), title="x")).text).split())
    first = (
        "Lowest loss, on the validation split of standard-library, 131,072 tokens: RoPE with 1.000"
    )
    assert f"{first} at 256;" in text
    assert "131,072 tokens after the first 131,072: ALiBi with 1.100 at 256" in text
    [entry] = [it for it in read_entries([tmp_path]) if it.needles]
    assert str(entry.needles.on).startswith("the train split of standard-library")


def labels_of(tmp_path, *options):
    """Labels of records of the recommended scheme with these options, one seed each."""
    for number, given in enumerate(options):
        changes = {"changes": {"scheme_options": given}}
        made = record("scale-invariant-spread", 3, (1.0, 2.0, 3.0), **changes)
        write_record(replace(made, name=f"{number}"), tmp_path)
    return [it.label for it in variants_of(read_entries([tmp_path]))]


def test_the_title_alone_stands_for_the_defaults_whichever_comes_first(tmp_path):
    labels = labels_of(tmp_path, {"rotating": 0.125}, {"rotating": 0.25})
    assert labels == ["Scale-inv. spread, rotating 0.125", "Scale-inv. spread"]


def test_defaults_that_are_spelled_out_make_no_other_variant(tmp_path):
    spelled = {"base": 16.0, "tau": 1.0, "highest_tau": 30.0, "rotating": 0.25}
    # The same seed of the same training, twice.
    labels = labels_of(tmp_path, {}, spelled)
    assert labels == ["Scale-inv. spread (0)", "Scale-inv. spread (1)"]


def test_an_option_that_all_rows_share_is_said_once(page):
    assert "Unless a row says otherwise, base is 16 instead of 1024." in page.text


def test_of_many_lines_those_of_the_main_schemes_are_shown_at_first(page, results):
    def shown(found):
        boxes = [
            it for it in found.attributes if it[0] == "input" and it[1] in ("checked", "value")
        ]
        pairs = [(boxes[at - 1][1], it[2]) for at, it in enumerate(boxes) if it[1] == "value"]
        # The explorer has a box for ALiBi too.
        titles = [it for before, it in pairs if before == "checked" and it in TITLES.values()]
        return list(dict.fromkeys(titles))

    main = (
        "RoPE",
        "p-RoPE",
        "YaRN",
        "LogN+p-RoPE",
        "ALiBi",
        "Scale-inv. p-RoPE",
        "Scale-inv. spread",
    )
    assert shown(page) == list(main)
    few = read_entries([results / f"{name}-seed-0.json" for name in ("nope", "alibi")])
    assert shown(Page(render_page(few, title="x"))) == ["NoPE", "ALiBi"]


def test_error_bars_are_mentioned_where_there_are_any(page, results):
    said = "Bars are standard errors over seeds."
    assert said in "".join(page.text)
    one = read_entries([results / "rope-seed-0.json", results / "alibi-seed-0.json"])
    assert said not in "".join(Page(render_page(one, title="x")).text)


def test_the_vendored_library_is_the_published_one():
    vendor = files("scale_invariant_attention.lab.reporting.web_page") / "assets/vendor"
    lines = (vendor / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 3
    for line in lines:
        digest, name = line.split()
        assert sha256((vendor / name).read_bytes()).hexdigest() == digest


@pytest.fixture(scope="module")
def conversions(tmp_path_factory):
    """Records of extended models: losses of two seeds, and needles."""
    folder = tmp_path_factory.mktemp("conversions")
    for trial in extension.reported_trials("mini", ("rope", "transform-yarn"), (0, 1)):
        ours = trial.config.variant == "transform-yarn"
        values = [n / 1024 - 0.5 * ours + 0.1 * trial.config.seed for n in trial.evaluation.lengths]
        write_record(conversion_record(trial, values), folder)
    for trial in extension.needle_trials("mini", ("yarn",), (0,)):
        write_record(conversion_record(trial, (0.9, 0.5, 0.25)), folder)
    return folder


def test_extended_models_have_a_section_of_their_own(conversions, results, tmp_path):
    both = write_report([conversions, results], tmp_path).read_text()
    assert 'id="extensions"' in both and 'id="losses"' in both
    page = Page(write_report([conversions], tmp_path).read_text())
    rows = page.table("Without training, factor 16, 65,536 tokens; the lowest")
    assert rows[0][:4] == ["model", "Llama, 1x", "Llama, 4x", "Llama, 16x"]
    assert [row[0] for row in rows[1:]] == ["RoPE, as trained", "the transform on yarn, tau 30"]
    assert "0.300 ± 0.050" in rows[1][1]
    found = page.table("After 10% of the tokens and fine-tuning on needles, factor 16")
    assert found[1][:2] == ["YaRN", "0.900"]


def test_one_record_of_an_extended_model_is_enough(conversions, tmp_path):
    one = next(conversions.glob("extension-llama-rope-0-*.json"))
    assert "RoPE, as trained" in write_report([one, one], tmp_path).read_text()


def test_without_transformers_the_page_says_what_it_leaves_out(conversions, monkeypatch, tmp_path):
    package = extension.__name__.partition(".lab.")[0]
    for name in list(sys.modules):
        if name.startswith((f"{package}.huggingface", f"{package}.lab.experiments.conv")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, extension.__name__)
    monkeypatch.setitem(sys.modules, "transformers", None)
    text = write_report([conversions], tmp_path).read_text()
    count = len(list(conversions.iterdir()))
    assert f"Records of converted models that are not shown: {count}. " in text
    assert "scale-invariant-attention[huggingface]" in text


def test_records_on_other_texts_are_not_mixed_and_none_is_dropped(conversions, tmp_path):
    [trial] = extension.reported_trials("mini", ("ntk-by-length",), (0,), families=("llama",))
    fewer = replace(trial, evaluation=replace(trial.evaluation, tokens=4096))
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir()
    part.mkdir()
    write_record(conversion_record(trial, (1.0, 2.0, 3.0)), whole)
    write_record(conversion_record(fewer, (1.5, 2.5, 3.5)), part)
    page = Page(write_report([whole, part], tmp_path).read_text())
    assert page.table("Without training, factor 16, 65,536 tokens;")[1][1] == "1.000"
    assert page.table("Without training, factor 16, 4,096 tokens;")[1][1] == "1.500"
    write_record(conversion_record(trial, (1.2, 2.2, 3.2)), part)
    with pytest.raises(ValueError, match="record the same trial; give one of them"):
        write_report([whole, part], tmp_path)
