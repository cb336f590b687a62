"""Training by four processes that share rows. Run by test_context_parallel with a folder."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_training import tiny_config
from two_processes import main, stopped_after
from typer.testing import CliRunner

from scale_invariant_attention.attention.context_parallel.api import METHODS
from scale_invariant_attention.cli import app
from scale_invariant_attention.model import GPT, ContextParallel, GPTConfig
from scale_invariant_attention.training import train
from scale_invariant_attention.training.ranks import open_ranks

SIZE = 4
KINDS = ("zigzag", "contiguous")
# Rows of 30 tokens do not divide into four or eight equal parts. tau is learned, per head.
CONFIG = tiny_config(
    **{"scheme": "scale-invariant-spread", "scheme_options": {"learn_tau": True, "base": 4.0}},
    **{"layers": 2, "width": 36, "heads": 3, "length": 30, "validation_lengths": (30, 60)},
    **{"batch_size": 4, "micro_batch_size": 3, "clip_norm": 0.5, "steps": 20, "validate_every": 20},
)
SHARDED = tiny_config(**{**CONFIG.to_dict(), "parallel": "shard"})
# The gain grows with the position, the rotary with the length, and activations are computed twice.
OTHER = tiny_config(
    **{"scheme": "logn-ntk", "length": 32, "validation_lengths": (32, 64), "steps": 4},
    **{"checkpoint_activations": True, "batch_size": 2},
)
NEEDLES = tiny_config(
    **{"task": "needles", "task_options": {"needles": 1, "digits": 2}, "first_length": 70},
    **{"growth_steps": 2, "length": 96, "validation_lengths": (96, 128), "steps": 4},
)


def training(config, name, context_parallel):
    return lambda rank: train(config, FOLDER / name, context_parallel=context_parallel)


def stopping(name):
    def scenario(rank):
        stopped_after(3, 1, rank, lambda: train(CONFIG, FOLDER / name, context_parallel=2))

    return scenario


def model_calls(rank):
    """Logits, losses and gradients of a model's call equal those of one process, part by part."""
    schemes = itertools.cycle(
        [
            ("scale-invariant-p-rope", {"learn_tau": True}),
            ("logn-rope", {}),
            ("yarn", {}),
            ("rope,scale-invariant-p-rope", {"rope.window": 9}),
            ("alibi", {"window": 12}),
        ]
    )
    with open_ranks("cpu", context_parallel=SIZE) as ranks:
        group = ranks.context_parallel.group
        ways = itertools.product(METHODS, KINDS)
        for (method, kind), (name, options) in zip(ways, schemes, strict=False):
            config = GPTConfig(
                **{"vocab_size": 50, "layers": 2, "width": 32, "heads": 4, "train_length": 16},
                **{"scheme_name": name, "scheme_options": options},
            )
            compare(config, ContextParallel(group, method, kind))
            if name == "logn-rope":
                compare(replace(config, is_causal=False), ContextParallel(group, method, kind))


def compare(config, context_parallel):
    torch.manual_seed(1)
    model = GPT(config).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    length = 37
    tokens, targets = torch.randint(50, (2, 2, length))
    packed = torch.tensor([0] * 11 + [1] * 20 + [2] * 6)
    mask = torch.arange(length) >= torch.tensor([[5], [0]])
    far = torch.arange(length) * 3 + 100
    for described in (
        {},
        {"documents": packed},
        {"token_mask": mask},
        {"positions": far},
        {"documents": packed.expand(2, -1), "token_mask": mask, "context_length": 64},
    ):
        rows = context_parallel.rows(length)
        expected = model(tokens, **described)
        found = model(tokens, **described, context_parallel=context_parallel)
        real = rows.part(mask) if "token_mask" in described else ...
        torch.testing.assert_close(found[real], rows.part(expected.mT).mT[real])
        losses = model(tokens, targets, **described, reduction="none")
        part = model(
            tokens, targets, **described, reduction="none", context_parallel=context_parallel
        )
        factors = torch.linspace(-1, 2, length, dtype=torch.float64)
        if "token_mask" in described:
            factors = factors * mask
        gradients = torch.autograd.grad((losses * factors).sum(), list(model.parameters()))
        parts = torch.autograd.grad((part * rows.part(factors)).sum(), list(model.parameters()))
        for (name, _), one, other in zip(model.named_parameters(), gradients, parts, strict=True):
            torch.distributed.all_reduce(other, group=context_parallel.group)
            torch.testing.assert_close(other, one, msg=lambda text, name=name: f"{name}: {text}")
        if "token_mask" not in described:
            torch.testing.assert_close(rows.whole(part), losses)


def evaluating(rank):
    words = ["evaluate", str(FOLDER / "1"), "--lengths", "31,62", "--tokens", "620"]
    done = CliRunner().invoke(app, [*words, "-o", str(FOLDER / "evaluation")])
    assert done.exit_code == 0, done.output
    assert ("By position" in done.stdout) == (rank == 0)


SCENARIOS = {
    "model": model_calls,
    "1": training(CONFIG, "1", 1),
    "2": training(CONFIG, "2", 2),
    "4": training(CONFIG, "4", 4),
    "shard-2": training(SHARDED, "shard-2", 2),
    "shard-4": training(SHARDED, "shard-4", 4),
    "evaluate": evaluating,
    "other": training(OTHER, "other", 4),
    "needles": training(NEEDLES, "needles", 2),
    "stop": stopping("stopped"),
    "resume": training(CONFIG, "stopped", 4),
    "indivisible": training(CONFIG, "indivisible", 3),
    "compiled": training(tiny_config(compile=True), "compiled", 2),
}

if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    main(SCENARIOS, SIZE)
