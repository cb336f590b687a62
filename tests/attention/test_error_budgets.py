"""The judge of random contracts: what is right passes, and what is wrong is named."""

import pytest
import torch
from error_budgets import Judge, Results, public_call, run
from random_contracts import draw


@pytest.fixture(scope="module")
def judge():
    return Judge(draw(7))


def right(judge):
    return run(judge.contract, public_call("tiled"))


def test_what_is_right_passes(judge):
    assert judge.violations(right(judge)) == []


@pytest.mark.parametrize("name", ["out", "lse", "query", "key", "value"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1e3])
def test_one_wrong_number_is_seen(judge, name, wrong):
    results = right(judge)
    tensor = results.grads[name] if name in results.grads else getattr(results, name)
    place = torch.isfinite(tensor).nonzero()[0]
    tensor[tuple(place)] = wrong
    (violation,) = judge.violations(results)
    assert violation.startswith(f"grad of {name}: " if name in results.grads else f"{name}: ")


@pytest.mark.parametrize("overflown", [torch.nan, torch.inf])
def test_an_eager_implementation_that_overflows_allows_no_more(overflown):
    judge = Judge(draw(7))
    judge.plain["out"][0, 0, 0, 0] = overflown
    results = right(judge)
    assert judge.violations(results) == []
    results.out[0, 0, 0, 0] = 1e3
    assert len(judge.violations(results)) == 1


def test_another_dtype_or_shape_is_seen(judge):
    results = right(judge)
    for out in (results.out.double(), results.out[:, :, 1:]):
        (violation,) = judge.violations(Results(out, results.lse, results.grads))
        assert violation == f"out: {out.dtype} {tuple(out.shape)}"


def test_a_number_where_nothing_is_visible_is_seen():
    contract = next(it for it in map(draw, range(1000)) if sees_nothing(it))
    judge, results = Judge(contract), run(contract, public_call("tiled"))
    assert judge.violations(results) == []
    results.lse[results.lse == -torch.inf] = 0.0
    assert judge.violations(results) == ["lse: differs where the truth is infinite"]


def sees_nothing(contract):
    """Whether a query of a contract sees no key."""
    return bool((run(contract, public_call("tiled")).lse == -torch.inf).any())


HALVES = (torch.float32,) * 3 + (torch.float16, torch.bfloat16)
LUCKY = {
    # The errors of the rows happen to cancel.
    "grad of tau": draw(1000225, HALVES, long_ones=False),
    # A single query has a gradient, and eager code happens to round it to the number next to the truth.
    "grad of query": draw(1234, HALVES, long_ones=False, coordinates=False),
}


@pytest.mark.parametrize("name", LUCKY)
def test_eager_errors_that_happen_to_cancel_do_not_narrow_a_budget(name):
    contract = LUCKY[name]
    assert contract.query.dtype == torch.float16
    judge = Judge(contract)
    typical, results = judge.typical_errors[name], right(judge)
    assert typical > 3 * judge.plain_errors[name]
    rounding = judge.rounding(name, judge.plain[name].dtype)
    for multiple, seen in ((2.5, 0), (3.5, 1)):
        wrong = judge.truth[name] + multiple * typical + rounding
        results.grads[name.removeprefix("grad of ")] = wrong.to(judge.plain[name].dtype)
        assert len(judge.violations(results)) == seen


def test_other_multiples_are_computed_only_for_what_exceeds_its_budget():
    judge = Judge(draw(7))
    assert judge.violations(right(judge)) == []
    assert "typical_errors" not in vars(judge)
