"""Rivals are held against the float64 reference in every form they take."""

import re
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from scale_invariant_attention.lab.benchmark import rivals
from scale_invariant_attention.lab.benchmark.correctness import FORMS, fault, faults_by_pass
from scale_invariant_attention.lab.benchmark.problem import PASSES, Setting
from scale_invariant_attention.lab.benchmark.rivals import contenders, rival_named


@pytest.mark.parametrize("name", [name for name in contenders() if name != "flex"])
def test_every_rival_that_needs_no_compiler_is_right(name):
    assert fault(rival_named(name)) is None


def spoilt_output(right, *inputs, **contract):
    return right(*inputs, **contract) * (1 + 1e-4)


def spoilt_gradient(right, query, key, value, **contract):
    return right(query, key.detach() + (key - key.detach()) * (1 + 1e-4), value, **contract)


def missing_head(right, *inputs, **contract):
    return right(*inputs, **contract)[:, 1:]


def not_a_number(right, *inputs, **contract):
    return right(*inputs, **contract) * torch.nan


def raising(right, *inputs, **contract):
    raise NotImplementedError("not today")


def without_window(right, *inputs, window=None, **contract):
    return right(*inputs, **contract)


def first_document_only(right, *inputs, key_documents=None, query_documents=None, **contract):
    return right(*inputs, **contract)


def blind_decoding(right, query, key, value, **contract):
    return right(query, key, value, **contract) * (2 if query.shape[2] == 1 else 1)


def detached_tables(right, *inputs, affine=None, **contract):
    out = right(*inputs, affine=affine, **contract)
    return out if affine is None else out + 0 * affine.gain.sum() + affine.bias[5]


SPOILT = {
    spoilt_output: r"wrong is wrong \(causal\): output errs by",
    spoilt_gradient: r"wrong is wrong \(causal\): key gradient errs by",
    not_a_number: r"wrong is wrong \(causal\): output errs by nan",
    missing_head: r"wrong raises RuntimeError \(causal\)|wrong .* has the shape",
    raising: r"wrong raises NotImplementedError \(causal\): not today",
    without_window: r"wrong is wrong \(window and sinks\)",
    first_document_only: r"wrong is wrong \(documents\)",
    blind_decoding: r"wrong is wrong \(decode\)",
    detached_tables: r"wrong is wrong \(tables\)",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_what_is_wrong_is_found(spoil):
    right = rival_named("tiled")
    wrong = replace(
        right, name="wrong", attention=lambda *inputs, **c: spoil(right.attention, *inputs, **c)
    )
    found = fault(wrong)
    assert found is not None
    assert re.match(SPOILT[spoil], found)


def test_what_is_declined_is_no_fault():
    right = rival_named("tiled")

    def modest(*inputs, window=None, **contract):
        if window is not None:
            raise NotImplementedError("no windows")
        return right.attention(*inputs, **contract)

    assert fault(replace(right, attention=modest)) is None


def test_those_without_the_whole_contract_are_asked_the_plain_forms_only():
    asked = []

    def plain(query, key, value):
        asked.append((query.shape[2], key.shape[2]))
        return rival_named("sdpa").attention(query, key, value)

    assert fault(replace(rival_named("sdpa"), attention=plain)) is None
    assert len(asked) == sum(form.plain for form in FORMS) == 2


def test_a_rival_that_cannot_take_part_says_why(monkeypatch):
    with pytest.raises(ValueError, match=r"'nobody' cannot take part: .*; those that can are sdpa"):
        rival_named("nobody")


HALF = Setting(dtype_name="bfloat16")


@pytest.mark.parametrize("name", ["sdpa", "eager", "tiled"])
def test_right_rivals_are_right_in_half_precision(name):
    assert faults_by_pass(rival_named(name), HALF) == {}


def decoding_as_the_first_query(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def one_key_more(query, key, value):
    return rival_named("sdpa").attention(query, key.roll(1, 2), value.roll(1, 2))


def without_half_precision(query, key, value):
    raise RuntimeError("expected float32")


def half_a_gradient(query, key, value):
    if value.requires_grad:
        value = value.detach() + (value - value.detach()) / 2
    return rival_named("sdpa").attention(query, key, value)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (decoding_as_the_first_query, {"decode": "is wrong (decode): output errs by"}),
        (one_key_more, dict.fromkeys(PASSES[:2], "is wrong (forward")),
        (without_half_precision, dict.fromkeys(PASSES, "raises RuntimeError (")),
        (half_a_gradient, {"forward+backward": "is wrong (forward+backward): value gradient errs"}),
    ],
)
def test_wrong_rivals_are_found_in_the_passes_where_they_are_wrong(attention, said):
    found = faults_by_pass(replace(rival_named("sdpa"), attention=attention), HALF)
    assert set(found) == set(said)
    assert all(found[name].startswith(f"sdpa {said[name]}") for name in said)


def test_rivals_of_a_gpu(monkeypatch):
    monkeypatch.setattr(rivals, "available_backends", lambda device: ["tiled", "flex"])
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    found = rivals.contenders("cuda")
    assert list(found) == ["sdpa", "sdpa-flash", "sdpa-cudnn", "eager", "tiled", "flex"]
    assert found["flex"].trains
    assert not found["tiled"].invited
    monkeypatch.setattr(rivals, "find_spec", lambda name: name)
    assert {"flash-attn", "flash-attn-4"} <= set(rivals.contenders("cuda"))
    assert not {"sdpa-flash", "flash-attn"} & set(rivals.contenders("cpu"))


@pytest.mark.parametrize("returns", [lambda out: out, lambda out: (out, None)])
def test_flash_attn_gets_the_sequence_first(monkeypatch, returns):
    def flash_attn_func(query, key, value, causal):
        assert causal
        tensors = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return returns(rivals.sdpa(*tensors).transpose(1, 2))

    module = ModuleType("flash_attn")
    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    query, key, value = torch.randn(3, 2, 4, 30, 8).unbind()
    assert torch.equal(rivals.flash_attn(query, key, value), rivals.sdpa(query, key, value))
