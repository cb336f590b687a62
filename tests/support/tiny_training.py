"""Training runs that take a second, and their results."""

import torch

from scale_invariant_attention.model import GPT
from scale_invariant_attention.training import read_metrics, recipe

TINY = {
    "layers": 1,
    "width": 32,
    "heads": 2,
    "length": 32,
    "batch_size": 4,
    "steps": 8,
    "validation_lengths": (32, 64),
    "validation_tokens": 256,
    "validate_every": 4,
    "checkpoint_every": 2,
}


def tiny_config(**changes):
    return recipe("mini", **(TINY | changes))


def options(**changes):
    """The same configuration as command-line options."""
    values = TINY | changes
    return [
        word
        for name, value in values.items()
        for word in (
            f"--{name.replace('_', '-')}",
            ",".join(map(str, value)) if isinstance(value, tuple) else str(value),
        )
    ]


def weights(folder):
    """Weights of a run's final model."""
    return GPT.from_pretrained(folder / "model").state_dict()


def same_weights(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def losses(folder):
    """Training and validation losses, in the order they were measured."""
    found = []
    for line in read_metrics(folder):
        found.extend([line["loss"]] if "loss" in line else line["validation"].values())
    return found


def measured(folder):
    """Metrics of a run, without times."""
    return [
        {name: value for name, value in line.items() if name != "seconds"}
        for line in read_metrics(folder)
    ]
