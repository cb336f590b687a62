"""The split of parameters between optimisers."""

import pytest
import torch
from tiny_models import CASES, tiny_config
from torch import nn

from scale_invariant_attention.model import GPT, GPTConfig, parameter_split
from scale_invariant_attention.schemes import Scheme


class Wrapper(nn.Module):
    """Renames parameters as a distributed wrapper does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class TableByHead:
    """A slot that learns a matrix."""

    def build(self, heads):
        module = nn.Module()
        module.table = nn.Parameter(torch.zeros(heads, 8))
        return module


def groups(model):
    split = parameter_split(model)
    return {
        "matrices": split.matrices,
        "embedding": split.embedding,
        "head": split.head,
        "scalars": split.scalars,
    }


@pytest.mark.parametrize(
    "wrap", [lambda m: m, torch.compile, Wrapper, lambda m: Wrapper(Wrapper(m))]
)
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_is_in_one_group(case, wrap):
    model = GPT(tiny_config(case))
    wrapped = wrap(model)
    split = groups(wrapped)
    names = [name for group in split.values() for name in group]
    assert sorted(names) == sorted(dict(wrapped.named_parameters()))
    for group in split.values():
        for name, parameter in group.items():
            assert wrapped.get_parameter(name) is parameter
    assert list(split["embedding"].values()) == [model.embedding.weight]
    assert list(split["head"].values()) == [model.head.weight]
    # Query, key, value, output, up and down, of two layers.
    assert len(split["matrices"]) == 12
    everywhere = case.startswith("logn") or case == "learned tau"
    in_one_layer = case.startswith("pattern") or case == "scale-invariant-global"
    assert len(split["scalars"]) == (2 if everywhere else 1 if in_one_layer else 0)
    assert all(parameter.shape == (3,) for parameter in split["scalars"].values())


def test_what_a_scheme_learns_is_no_matrix_for_muon():
    model = GPT(tiny_config("nope"), scheme=Scheme(distance=TableByHead()))
    split = parameter_split(model)
    assert len(split.matrices) == 12
    assert list(split.scalars) == [f"blocks.{i}.attention.scheme.distance.table" for i in range(2)]


@pytest.mark.parametrize(
    ("preset", "matrices", "vocabulary"),
    [
        ("162m", 12 * 12 * 768**2, 50_304 * 768),
        ("304m", 16 * 12 * 1024**2, 50_304 * 1024),
    ],
)
def test_sizes_of_the_papers_models(preset, matrices, vocabulary):
    with torch.device("meta"):
        model = GPT(GPTConfig.preset(preset, scheme_name="logn-p-rope"))
    split = groups(model)
    sizes = {name: sum(p.numel() for p in group.values()) for name, group in split.items()}
    scalars = model.config.layers * model.config.heads
    assert sizes == {
        "matrices": matrices,
        "embedding": vocabulary,
        "head": vocabulary,
        "scalars": scalars,
    }
    total = {"162m": 162_201_600, "304m": 304_349_184}[preset]
    assert sum(sizes.values()) - scalars == total
