"""Problems: their names, the work in them, and who sits them out."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from scale_invariant_attention.lab.benchmark.problem import PASSES, Problem, Setting
from scale_invariant_attention.lab.benchmark.rivals import contenders


@pytest.mark.parametrize("pass_name", PASSES)
def test_names_are_read_back(pass_name):
    problem = Problem.named("6x128", "4096", pass_name)
    assert problem == Problem(6, 128, 4096, pass_name)
    assert problem.shape == "6x128"
    assert str(problem) == f"6x128, 4,096 tokens, {pass_name}"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("6by128", "64", "forward"), "shape must be heads x head size, as in 6x128; got '6by128'"),
        (("0x128", "64", "forward"), "got '0x128'"),
        (("6x128", "0", "forward"), "length must be a number of tokens, as in 4096; got '0'"),
        (("6x128", "64", "sideways"), "pass must be one of forward, .*; got 'sideways'"),
    ],
)
def test_names_that_make_no_sense(words, complaint):
    with pytest.raises(ValueError, match=complaint):
        Problem.named(*words)


@pytest.mark.parametrize(("heads", "head_dim", "length"), [(1, 1, 1), (2, 3, 7), (6, 128, 64)])
def test_flops_are_those_of_the_visible_pairs(heads, head_dim, length):
    pairs = sum(1 for i, j in product(range(length), repeat=2) if j <= i)
    problem = Problem(heads, head_dim, length, "forward")
    assert problem.flops == 4 * head_dim * heads * pairs
    assert replace(problem, pass_name="forward+backward").flops == 3.5 * problem.flops
    assert replace(problem, pass_name="decode").flops == 4 * head_dim * heads * length


def test_the_cache_is_keys_and_values():
    inputs = Problem(2, 3, 7, "decode").inputs()
    assert inputs.query.shape == inputs.grad.shape == (1, 2, 1, 3)
    assert Problem(2, 3, 7, "decode").cache_bytes == inputs.key.nbytes + inputs.value.nbytes


@pytest.mark.parametrize(("pass_name", "returned"), [("forward", 1), ("forward+backward", 4)])
def test_a_run_returns_output_and_gradients(pass_name, returned):
    problem = Problem(2, 8, 16, pass_name)
    inputs = problem.inputs()
    results = problem.run(contenders()["sdpa"].attention, inputs)()
    assert len(results) == returned
    assert all(tensor.shape == inputs.query.shape for tensor in results)


def test_gradients_of_parameters_are_asked_for_too():
    problem = Problem(2, 8, 16, "forward+backward")
    factor = torch.ones((), requires_grad=True)
    run = problem.run(lambda q, k, v: q * k * v * factor, problem.inputs(), [factor])
    assert run()[-1].shape == factor.shape


def test_who_does_not_take_part():
    rivals = contenders()
    problem = Problem.named("6x128", "4096", "forward+backward")
    needed = rivals["eager"].score_matrices * 4 * 6 * 4096**2
    assert problem.unsupported_reason(rivals["eager"], memory_limit=needed) is None
    refusal = problem.unsupported_reason(rivals["eager"], memory_limit=2**30)
    assert refusal == "5 score matrices would take 1.9 GiB, and 1 GiB are allowed"
    decoding = replace(problem, pass_name="decode")
    assert decoding.unsupported_reason(rivals["eager"], memory_limit=2**20) is None
    assert problem.unsupported_reason(rivals["tiled"], memory_limit=0) is None
    untrained = replace(rivals["tiled"], trains=False)
    assert problem.unsupported_reason(untrained, memory_limit=0) == "it has no backward pass here"
    assert (
        replace(problem, pass_name="forward").unsupported_reason(untrained, memory_limit=0) is None
    )


def test_batches_and_narrow_numbers_count():
    plain = Problem(2, 16, 32, "forward")
    half = replace(plain, batch=3, setting=Setting(dtype_name="bfloat16"))
    inputs = half.inputs()
    assert inputs.query.shape == (3, 2, 32, 16)
    assert inputs.query.dtype == torch.bfloat16
    assert half.flops == 3 * plain.flops
    assert half.cache_bytes == inputs.key.nbytes + inputs.value.nbytes
    assert str(half) == "2x16, 32 tokens, forward, batch 3"
