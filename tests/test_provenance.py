import pytest

from scale_invariant_attention import provenance as module
from scale_invariant_attention.provenance import IDENTITY, provenance


def git(answers):
    return lambda command, *_: answers.get(command, "")


@pytest.mark.parametrize(
    ("answers", "commit"),
    [
        ({}, "unknown"),
        # The git repository of a user who installed the package, not ours.
        ({"rev-parse": "abc"}, "unknown"),
        ({"ls-files": "provenance.py", "rev-parse": "abc"}, "abc"),
        ({"ls-files": "x", "rev-parse": "abc", "status": " M src/x.py"}, "abc with changes"),
    ],
)
def test_commit_is_that_of_the_package(monkeypatch, answers, commit):
    monkeypatch.setattr(module, "_git", git(answers))
    assert provenance()["commit"] == commit


def test_no_field_is_empty():
    origin = provenance()
    assert set(IDENTITY) < set(origin)
    assert all(origin.values())
