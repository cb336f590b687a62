"""The documentation: its code runs or says why not, its commands, links and messages are right."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from command_line import parse

from scale_invariant_attention.model import pretrained_models

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "scale_invariant_attention"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<mark>^<!-- not run: (?P<reason>.+) -->\n)?^``` *(?P<language>\w*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
# Pages of the site that stand at the root of the repository.
ROOT_PAGES = ("reproduction.md", "contributing.md", "changelog.md")
PUBLIC = (
    *("attention", "attention.context_parallel", "schemes", "model", "data", "training"),
    *("evaluation", "analysis", "theory", "huggingface"),
)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page, *languages):
    return [it for it in BLOCK.finditer(page.read_text()) if it["language"] in languages]


@each_page
def test_code_runs_or_says_why_not(page):
    known = {"python", "bash", "text"}
    assert {it["language"] for it in BLOCK.finditer(page.read_text())} <= known
    for block in blocks(page, "python", "bash"):
        runs = block["code"].startswith(">>> ")
        assert runs or block["reason"], (
            "write the block as a doctest, or put <!-- not run: the reason --> on the line before "
            f"it:\n{block[0]}"
        )
        assert not (runs and block["reason"]), f"this block runs:\n{block[0]}"


def commands(page):
    """The lines of all bash blocks, as words."""
    for block in blocks(page, "bash"):
        for line in block["code"].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


@each_page
def test_commands_parse(page):
    targets = set(
        re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    targets = {name for line in targets for name in line.split()}
    for words in commands(page):
        if words[0] == "torchrun" and "scale_invariant_attention.cli" in words:
            words = ["sia", *words[words.index("scale_invariant_attention.cli") + 1 :]]
        if words[0] == "sia":
            parse(words[1:])
        elif words[0] == "make":
            assert next(it for it in words[1:] if "=" not in it) in targets, words
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), words


@each_page
def test_pretrained_models_on_the_page_exist(page):
    named = set(re.findall(r"\bsia-(?:mini|needles)-[\w-]+", page.read_text()))
    assert named <= pretrained_models().keys()


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        generated = page.parent == DOCS and target in ("explorer.html", "report.html")
        assert generated or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation_once():
    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        return [
            leaf
            for it in (entry.values() if isinstance(entry, dict) else entry)
            for leaf in leaves(it)
        ]

    yaml = pytest.importorskip("yaml")
    listed = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *ROOT_PAGES])


def test_the_reference_has_every_public_name_once():
    lines = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"^::: scale_invariant_attention\.(\S+)$", lines, re.MULTILINE)
    public = []
    for package in PUBLIC:
        if package == "huggingface":
            pytest.importorskip("transformers")
        module = import_module(f"scale_invariant_attention.{package}")
        public += [f"{package}.{name}" for name in module.__all__]
    assert sorted(listed) == sorted(public)


def test_the_messages_of_the_troubleshooting_page_are_real():
    literals = re.compile(r'"\s*\n\s*f?"')  # a literal that continues on the next line
    sources = "\n".join(literals.sub("", file.read_text()) for file in PACKAGE.rglob("*.py"))
    rows = re.findall(
        r"^\| `(.+?)`(?: \(a warning\))? \|", (DOCS / "troubleshooting.md").read_text(), re.M
    )
    assert len(rows) > 20
    for message in rows:
        for part in message.split(" ... "):
            assert part in sources or "unexpected keyword" in part, message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paragraphs_of_list_items_stay_in_their_lists(page):
    """On the site, a paragraph after a blank line belongs to an item only if indented by four.

    The next item then needs a blank line before it.
    """
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    assert not re.findall(r"\n[ ]*\n[ ]{1,3}\S.*", text)
    assert not re.findall(r"\n[ ]{4}\S.*\n(?:\d+\.|-) .*", text)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_speed_in_the_readme_is_that_of_the_records():
    rows = re.findall(
        r"^\| time relative to SDPA \|.*\| (forward\S*) \| ([\d.]+) ",
        (DOCS / "benchmark.md").read_text(),
        re.MULTILINE,
    )
    readme = (ROOT / "README.md").read_text()
    for which in ("forward", "forward+backward"):
        ratios = [float(ratio) for name, ratio in rows if name == which]
        assert f"{min(ratios):.2f} to {max(ratios):.2f} times" in readme
