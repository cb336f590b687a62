"""Messages and texts of the package, free of phrases that make a reader stumble."""

import ast
import re
from pathlib import Path

import pytest

import scale_invariant_attention
from scale_invariant_attention.lab.reporting.web_page._entries import MeasuredOn
from scale_invariant_attention.schemes import ScaleInvariant
from scale_invariant_attention.training import TrainingConfig

PACKAGE = Path(scale_invariant_attention.__file__).parent
STUMBLING = re.compile(
    r"must satisfy|for want of|is the matter|[Oo]nly so many|[Bb]roken off|made anew|"
    r"\bone an? (head|token|step|row)\b|trained length|given was|commas between|\bgo(es)? on\b|"
    r"told from|\bplace\(s\)|\bmended?\b"
)


def texts(path):
    """All literals of a file, with ... for the values in them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(it.value if isinstance(it, ast.Constant) else "..." for it in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_text_has_a_phrase_that_was_reported():
    found = [
        (path.name, text)
        for path in PACKAGE.rglob("*.py")
        for text in texts(path)
        if STUMBLING.search(text)
    ]
    assert found == []


def test_the_scan_sees_what_it_is_for(tmp_path):
    (tmp_path / "bad.py").write_text('x = f"{name} must satisfy {name} >= 1, got " f"{x}; go on"\n')
    [whole] = [text for text in texts(tmp_path / "bad.py") if "..." in text]
    assert whole == "... must satisfy ... >= 1, got ...; go on"
    assert STUMBLING.search(whole)


def test_limits_are_named_in_words():
    with pytest.raises(ValueError, match=r"^steps must be at least 1, got -5$"):
        TrainingConfig(steps=-5)
    with pytest.raises(ValueError, match=r"^matrix_rate must be at least 0, got -1\.0$"):
        TrainingConfig(matrix_rate=-1.0)
    with pytest.raises(ValueError, match=r"^clip_norm must be greater than 0, got 0\.0$"):
        TrainingConfig(clip_norm=0.0)


def test_a_tau_for_each_head_is_explained():
    message = "^tau must be one number, or a list of 4, one per head; got a list of 2$"
    with pytest.raises(ValueError, match=message):
        ScaleInvariant(tau=(1.0, 2.0)).tau_of_heads(4)


def test_one_of_a_thing_is_singular():
    on = MeasuredOn("text:a", tokens=1, documents=1, examples=1, contexts=1)
    assert str(on) == "the validation split of text:a, 1 token, 1 document, 1 example, 1 text"
    assert str(MeasuredOn(tokens=2, skip=3)) == "2 tokens after the first 3"
