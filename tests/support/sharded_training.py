"""Training by two processes, each with a part of the model. Run by test_sharding with a folder."""

import sys
from functools import partial
from pathlib import Path

import torch
from tiny_training import tiny_config
from two_processes import SIZE, interrupted_after, main, stopped_after

from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import _optimisers, build_optimisers, loop, train
from scale_invariant_attention.training._muon import Muon
from scale_invariant_attention.training._parallel import (
    Sharded,
    load_whole,
    part_like,
    whole,
    whole_on_first,
)
from scale_invariant_attention.training.ranks import open_ranks

# Three heads, and 257 rows of embedding and head, cannot be divided evenly by two.
CONFIG = tiny_config(
    **{"scheme": "logn-p-rope", "layers": 2, "width": 36, "heads": 3, "vocab_size": 257},
    **{"batch_size": 8, "micro_batch_size": 3, "clip_norm": 0.5, "parallel": "shard"},
)
ODD = tiny_config(
    **{"scheme": "alibi", "layers": 1, "width": 15, "heads": 3, "batch_size": 8},
    **{"parallel": "shard", "steps": 4},
)
# One rank holds none of the head's learned scalars.
ONE_HEAD = tiny_config(scheme="logn-rope", heads=1, batch_size=8, parallel="shard", steps=4)
AGAIN = tiny_config(batch_size=8, parallel="shard", steps=4, checkpoint_activations=True)
EXPLODING = tiny_config(batch_size=8, parallel="shard", head_rate=1e4, checkpoint_every=0)
NOT_FINITE = tiny_config(
    **{"batch_size": 8, "parallel": "shard", "checkpoint_every": 1},
    **{"head_rate": 1e38, "embedding_rate": 1e38},
)
NARROW = tiny_config(batch_size=8, parallel="shard", precision="bfloat16")


def small_model(seed=0):
    torch.manual_seed(seed)
    return GPT(
        GPTConfig(33, layers=2, width=18, heads=3, train_length=16, scheme_name="logn-p-rope")
    )


def parts(rank):
    """Each rank holds its part, and parts and whole tensors convert into each other."""
    with open_ranks("cpu") as ranks:
        expected = small_model().state_dict()
        held = Sharded(small_model(), ranks, compiled=False)
        model = held.model
        parameters = list(model.parameters())
        adam_and_muon = build_optimisers(model)
        tokens = torch.arange(16).view(2, 8)
        for last in (False, True):
            with held.exchanging(last):
                model(tokens, tokens).backward()
            # After each backward pass a rank holds only its part of the gradients.
            assert all(p.grad is not None for p in parameters)
        for name, parameter in model.named_parameters():
            rows = len(expected[name])
            mine = -(-rows // SIZE) if rank == 0 else rows // SIZE
            for tensor in (parameter, parameter.grad):
                assert tensor.shape == expected[name].shape
                assert len(tensor.to_local()) == mine, name
        gathered = whole_on_first(model.state_dict(), ranks)
        assert gathered.keys() == (expected.keys() if rank == 0 else set())
        assert all(torch.equal(gathered[name], expected[name]) for name in gathered)

        adam_and_muon.step()
        adam_and_muon.zero_grad()
        state = adam_and_muon.state_tensors()
        wholes = {name: whole(tensor) for name, tensor in state.items()}
        again = build_optimisers(model)
        again.load_state(wholes, adam_and_muon.state_values())
        for name, tensor in again.state_tensors().items():
            if name.endswith(".step"):
                assert torch.equal(tensor, state[name])
                continue
            local, other = tensor.to_local(), state[name].to_local()
            assert torch.equal(local, other)
            # Not a view of the whole tensor, which would stay in memory.
            assert local.untyped_storage().nbytes() == local.numel() * local.element_size(), name

        others = small_model(1).state_dict()
        load_whole(model, others)
        now = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        assert all(torch.equal(now[name], others[name]) for name in others)
        # Validation leaves the root module gathered, which must not change the saved weights.
        with torch.no_grad():
            model(torch.arange(16).view(2, 8))
        now = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        assert all(torch.equal(now[name], others[name]) for name in others)


def muon(rank):
    """Muon updates parts exactly as whole tensors, even with fewer rows than ranks."""
    with open_ranks("cpu") as ranks:
        like = Sharded(small_model(), ranks, compiled=False).model.head.weight
        for shape in ((18, 18), (7, 18), (19, 7), (1, 5)):
            for dtype in (None, torch.bfloat16):
                start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
                plain = torch.nn.Parameter(start.clone())
                cut = torch.nn.Parameter(part_like(start, like))
                both = [Muon([weight], dtype=dtype) for weight in (plain, cut)]
                for step in range(3):
                    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step))
                    plain.grad, cut.grad = gradient, part_like(gradient, cut)
                    for optimiser in both:
                        optimiser.step()
                assert torch.equal(whole(cut.detach()), plain)
                assert len(both[1].state[cut]["momentum_buffer"].to_local()) < max(2, shape[0])


def training(config, name):
    return lambda rank: train(config, FOLDER / name)


def returned(rank):
    """`train` returns an ordinary model, the same on all ranks."""
    model = train(CONFIG, FOLDER / "sharded")
    assert type(model) is GPT
    saved = GPT.from_pretrained(FOLDER / "sharded" / "model").state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    tokens = torch.arange(16).view(2, 8)
    model(tokens, tokens).backward()


def stopping(stopped_rank, name):
    return lambda rank: stopped_after(3, stopped_rank, rank, lambda: train(CONFIG, FOLDER / name))


def killed(rank):
    """Training killed between two checkpoints."""

    def kill():
        raise OSError("killed")

    interrupted_after(5, kill, lambda: train(CONFIG, FOLDER / "killed"))


def muon_of_parts(rank):
    with open_ranks("cpu") as ranks:
        model = Sharded(small_model(), ranks, compiled=False).model
        _, muon = build_optimisers(model, precision="bfloat16").optimisers
        assert (type(muon), muon.dtype) == (Muon, torch.bfloat16)


def with_units_for_bfloat16(action, rank):
    checks = loop.fast_in_bfloat16, _optimisers.fast_in_bfloat16
    loop.fast_in_bfloat16 = _optimisers.fast_in_bfloat16 = lambda device: True
    try:
        action(rank)
    finally:
        loop.fast_in_bfloat16, _optimisers.fast_in_bfloat16 = checks


SCENARIOS = {
    "parts": parts,
    "muon": muon,
    "sharded": returned,
    "stop-0": stopping(0, "stopped-0"),
    "stop-1": stopping(1, "stopped-1"),
    "resume-1": training(CONFIG, "stopped-1"),
    "kill": killed,
    "resume-killed": training(CONFIG, "killed"),
    "from-one": training(CONFIG, "from-one"),
    "odd": training(ODD, "odd"),
    "one-head": training(ONE_HEAD, "one-head"),
    "again": training(AGAIN, "again"),
    "muon-of-parts": partial(with_units_for_bfloat16, muon_of_parts),
    "narrow": partial(with_units_for_bfloat16, training(NARROW, "narrow")),
    "exploding": training(EXPLODING, "exploding"),
    "not-finite": training(NOT_FINITE, "not-finite"),
}

if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    main(SCENARIOS)
