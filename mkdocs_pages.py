"""Hooks of the documentation site: pages that are generated, or kept at the root of the repository."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from scale_invariant_attention.lab.reporting.web_page import render_page, write_report

ROOT = Path(__file__).parent
# Files at the root of the repository that are pages of the site.
ROOT_PAGES = ("REPRODUCTION.md", "CONTRIBUTING.md", "CHANGELOG.md")
REPORT = "[The same records on one interactive page](report.html), with charts and heat maps."
RESULTS = re.compile(r"<!-- results -->(.*)<!-- end of results -->", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, examples, notebooks, the explorer, and the report of the records."""
    for name in ROOT_PAGES:
        text = as_site_page((ROOT / name).read_text()).replace(
            "## In short", f"{REPORT}\n\n## In short"
        )
        files.append(File.generated(config, name.lower(), content=text))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", content=path.read_text()))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.name}", content=path.read_text()))
    explorer = render_page([], title="Attention explorer")
    files.append(File.generated(config, "explorer.html", content=explorer))
    report = write_report([ROOT / "results" / "mini"], ROOT / "build" / "report")
    files.append(File.generated(config, "report.html", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Insert the README's results, link to the pages of the root, and mark doctests as such."""
    if "<!-- results of the README -->" in markdown:
        [found] = RESULTS.findall((ROOT / "README.md").read_text())
        markdown = markdown.replace("<!-- results of the README -->", as_site_page(found))
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name.lower()}")
    # As sessions, prompts and results can be left out when code is copied: see site.css.
    markdown = markdown.replace("```python\n>>> ", "```pycon\n>>> ")
    return markdown.replace("](../examples/", "](examples/").replace(
        "](../notebooks/", "](notebooks/"
    )


def as_site_page(markdown: str) -> str:
    """A text of the root of the repository, with the links that it needs on the site.

    >>> as_site_page("[a](docs/a.md#b), [c](REPRODUCTION.md), [d](https://d.org/CHANGELOG.md)")
    '[a](a.md#b), [c](reproduction.md), [d](https://d.org/CHANGELOG.md)'
    """
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"]({name}", f"]({name.lower()}")
    return markdown.replace("](docs/", "](")
