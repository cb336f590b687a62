"""Whole contracts at random, on every backend, against the float64 oracle."""

import pytest
from contract_checks import failures
from random_contracts import draw

CONTRACTS, AT_ONCE = 3000, 50


@pytest.mark.parametrize("start", range(0, CONTRACTS, AT_ONCE))
def test_every_backend_keeps_the_contract(start):
    found = []
    for seed in range(start, start + AT_ONCE):
        contract = draw(seed)
        found += [f"{contract}\n    {failure}" for failure in failures(contract)]
    assert not found, "\n".join(found)
