"""Checkpoints small enough to save by the hundred, and a bit-exact check of their contents."""

import torch

from scale_invariant_attention.training.checkpoints import (
    find_checkpoints,
    save_checkpoint,
)


def contents(step):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {
            "weight": torch.randn(5, 3, generator=generator),
            "half": torch.randn(7, generator=generator).bfloat16(),
            "empty": torch.zeros(0, 3),
            "special": torch.tensor([float("nan"), float("inf"), -0.0]),
        },
        "optimisers": {},
        "random": {"torch": generator.get_state(), "count": torch.tensor(2**62 + step)},
    }
    return tensors, {
        "step": step,
        "third": 1 / 3,
        "words": [2**127, None, "ä"],
        "nested": {"a": {}},
    }


def save(folder, step, **options):
    return save_checkpoint(folder, step, *contents(step), **options)


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).tolist()


def is_whole(checkpoint):
    tensors, values = contents(checkpoint.step)
    return (
        checkpoint.values == values
        and list(checkpoint.values) == list(values)
        and {g: {n: bits(t) for n, t in m.items()} for g, m in checkpoint.tensors.items()}
        == {g: {n: bits(t) for n, t in m.items()} for g, m in tensors.items()}
    )


def steps(folder):
    return [found.step for found in find_checkpoints(folder)]


def every_file(path):
    return sorted(file for file in path.iterdir())
