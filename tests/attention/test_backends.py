"""The choice of the backend; one requested by name is never replaced."""

from dataclasses import replace

import pytest
import torch
from backend_names import WHOLE, needs_kernels

import scale_invariant_attention as sia
from scale_invariant_attention.attention import Visibility, backends
from scale_invariant_attention.attention.contract import checked_call


@pytest.fixture
def query():
    return torch.randn(1, 2, 8, 4)


def test_available_and_unavailable_share_out_all_names():
    for device in ("cpu", "cuda", "meta", torch.device("cpu")):
        available, unavailable = sia.available_backends(device), sia.unavailable_backends(device)
        assert {*available, *unavailable} == {*backends.BACKENDS}
        assert not {*available} & {*unavailable}
        assert all(unavailable.values())


def test_flex_says_why_it_is_absent(monkeypatch):
    assert "meta" in sia.unavailable_backends("meta")["flex"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "compiler" in sia.unavailable_backends("cpu")["flex"]
    monkeypatch.setattr("torch.cpu._is_avx2_supported", lambda: False)
    assert "AVX2" in sia.unavailable_backends("cpu")["flex"]


def test_an_absent_backend_raises_with_the_reason(monkeypatch, query):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NotImplementedError, match=r"'flex'.*compiler"):
        sia.scale_invariant_attention(query, query, query, backend="flex")


DECLINED = [
    ({"grad": "query"}, "no backward on CPUs"),
    ({"grad": "tau"}, "no gradients for the gain and bias tables or tau"),
    ({"return_lse": True}, "no log-sum-exp on CPUs"),
    ({"dtype": torch.float64}, "float64"),
]


@pytest.mark.parametrize(("case", "reason"), DECLINED, ids=str)
def test_flex_declines_by_name_and_auto_takes_another(query, case, reason):
    query = query.to(case.get("dtype", torch.float32)).requires_grad_(case.get("grad") == "query")
    tau = torch.tensor(10.0, requires_grad=case.get("grad") == "tau")
    settings = {"tau": tau, "return_lse": case.get("return_lse", False)}
    with pytest.raises(NotImplementedError, match=reason):
        sia.scale_invariant_attention(query, query, query, backend="flex", **settings)
    with pytest.raises(NotImplementedError, match=reason):
        sia.backend_for(query, query, query, backend="flex", **settings)
    assert sia.backend_for(query, query, query, **settings) in ("cpu", "tiled")


def test_tables_that_learn_are_declined_by_flex(query):
    affine = sia.DistanceAffine(torch.ones(8), torch.zeros(8, requires_grad=True))
    with pytest.raises(NotImplementedError, match="tables"):
        sia.distance_affine_attention(query, query, query, affine, backend="flex")
    with torch.no_grad():
        assert sia.backend_for(query, query, query, affine, backend="flex") == "flex"


@pytest.mark.parametrize("name", WHOLE)
def test_the_backend_asked_for_is_the_one_that_runs(monkeypatch, query, name):
    ran = []
    for known, backend in list(backends.BACKENDS.items()):

        def recording(call, return_lse, known=known, run=backend.attention):
            ran.append(known)
            return run(call, return_lse)

        monkeypatch.setitem(backends.BACKENDS, known, replace(backend, attention=recording))
    sia.scale_invariant_attention(query, query, query, backend=name)
    assert ran == [name]
    sia.scale_invariant_attention(query, query, query)
    assert ran == [name, sia.backend_for(query, query, query)]


@needs_kernels
def test_auto_on_a_cpu_is_the_compiled_one_and_tiled_for_float64(query):
    assert sia.backend_for(query, query, query) == "cpu"
    assert sia.backend_for(query, query, query, window=3, sinks=1, is_causal=False) == "cpu"
    query = query.double()
    assert sia.backend_for(query, query, query) == "tiled"
    with pytest.raises(NotImplementedError, match="float64"):
        sia.backend_for(query, query, query, backend="cpu")


def test_without_compiled_kernels_auto_is_tiled(monkeypatch, query):
    monkeypatch.setattr(
        "scale_invariant_attention.attention.cpu.UNAVAILABLE_REASON", "no compiler was found"
    )
    assert sia.unavailable_backends("cpu")["cpu"] == "no compiler was found"
    assert sia.backend_for(query, query, query) == "tiled"
    with pytest.raises(NotImplementedError, match=r"'cpu'.*no compiler was found"):
        sia.scale_invariant_attention(query, query, query, backend="cpu")


def test_backend_for_checks_the_call_too(query):
    with pytest.raises(ValueError, match="window"):
        sia.backend_for(query, query, query, window=0)
    with pytest.raises(ValueError, match="'nonsense'"):
        sia.backend_for(query, query, query, backend="nonsense")


@pytest.mark.parametrize("name", sorted(n for n, it in backends.BACKENDS.items() if it.backward))
def test_gradients_of_parts_of_the_keys_add_up_to_those_of_the_whole(name):
    """Backward starts from the whole log-sum-exp; its unrounded gradients are in the compute dtype."""
    if name not in sia.available_backends():
        pytest.skip(f"{name} does not run here")
    query, key, value = torch.randn(3, 2, 4, 40, 16, dtype=torch.bfloat16).unbind()
    tau = torch.tensor([3.0, 4.0, 5.0, 6.0])

    def call(keys):
        positions = torch.arange(40)
        seen = Visibility(query_positions=positions, key_positions=positions[keys], window=30)
        parts = (query, key[:, :, keys], value[:, :, keys])
        return checked_call(*parts, affine=None, tau=tau, visibility=seen)

    backend, whole = backends.BACKENDS[name], call(slice(None))
    out, lse = backend.forward(whole)
    given = (out, lse, torch.randn_like(out), torch.randn_like(lse), True)
    exact = backend.backward(whole, *given, unrounded=True)
    first, last = (
        backend.backward(call(keys), *given, unrounded=True) for keys in (slice(13), slice(13, 40))
    )
    assert exact.query.dtype == exact.key.dtype == exact.value.dtype == torch.float32
    assert backend.backward(whole, *given).key.dtype == torch.bfloat16
    torch.testing.assert_close(first.query + last.query, exact.query)
    torch.testing.assert_close(torch.cat([first.key, last.key], 2), exact.key)
    torch.testing.assert_close(torch.cat([first.value, last.value], 2), exact.value)
    torch.testing.assert_close(first.tau + last.tau, exact.tau)
