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


@pytest.fixture(scope="module")
def lucky():
    """The judge of a contract in which the eager errors of the gradient of tau happen to cancel."""
    contract = draw(1000225, (torch.float32,) * 3 + (torch.float16, torch.bfloat16), False)
    assert contract.query.dtype == torch.float16
    judge = Judge(contract)
    assert judge.plain_tau_error > 3 * judge.plain_errors["grad of tau"]
    return judge


@pytest.mark.parametrize(("multiple", "seen"), [(2.9, 0), (3.1, 1)])
def test_errors_of_rows_that_cancel_do_not_narrow_the_budget_of_tau(lucky, multiple, seen):
    results = right(lucky)
    shift = multiple * lucky.plain_tau_error
    results.grads["tau"] = (lucky.truth["grad of tau"] + shift).float()
    assert len(lucky.violations(results)) == seen
