"""1,000 damaged files: every one is refused clearly or gives the same result."""

import pytest
from damaged_files import Outcome, examine, failed, prepared
from file_damage import BYTES

CASES = {
    "models": 200,
    "checkpoints": 150,
    "shards": 200,
    "records": 200,
    "results": 100,
    "exports": 50,
    "downloads": 50,
    "records without a hash": 50,
}


@pytest.mark.parametrize("kind", CASES)
def test_damage_is_refused_or_changes_nothing(kind, tmp_path):
    if kind == "exports":
        pytest.importorskip("transformers")
    with prepared(kind, tmp_path) as opened:
        cases = [examine(kind, opened, seed) for seed in range(CASES[kind])]
        assert opened.open() == opened.expected
    assert not [str(case) for case in cases if failed(case)]
    # The damage is real: most of it is found, except where a download starts again.
    refused = sum(case.outcome is Outcome.REFUSED for case in cases)
    assert refused > 0.6 * len(cases) or kind == "downloads"
    assert len({case.damage.split(" of ")[0] for case in cases}) > len(set(BYTES)) / 2


def test_there_are_1000_cases():
    assert sum(CASES.values()) == 1000


def test_a_silent_difference_would_be_noticed(tmp_path):
    """The same cases, opened without looking at hashes."""
    with prepared("records without a hash", tmp_path) as opened:
        outcomes = {examine("records", opened, seed).outcome for seed in range(60)}
    assert Outcome.DIFFERENT in outcomes
