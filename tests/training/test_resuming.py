"""All parts of resuming a training, combined as in the loop."""

import random

import numpy as np
import pytest
import torch

from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import Trapezoid, build_optimisers
from scale_invariant_attention.training.checkpoints import (
    capture_random_state,
    latest_checkpoint,
    restore_random_state,
    save_checkpoint,
)
from scale_invariant_attention.training.runs import CHECKPOINTS, open_run

STEPS = 8
SCHEDULE = Trapezoid(constant_steps=3, warmup_steps=2)
MODEL = {"vocab_size": 32, "layers": 2, "width": 16, "heads": 2, "train_length": 16}


class KilledError(Exception):
    """Ends a training between two of its actions, as a kill would."""


def batch():
    """A batch drawn from all three generators, whose states must all be restored."""
    tokens = torch.randint(32, (2, 17))
    tokens[0, 0] = random.randrange(32)
    tokens[1, 0] = int(np.random.randint(32))
    return tokens


def train(folder, seed, *, killed_at=None, scheme="logn-rope"):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    config = MODEL | {"scheme_name": scheme}
    with open_run(folder, {"model": config, "steps": STEPS}) as run:
        model = GPT(GPTConfig.from_dict(config))
        optimisers = build_optimisers(model)
        step = 0
        saved = latest_checkpoint(run.folder / CHECKPOINTS)
        if saved is not None:
            step = saved.step
            model.load_state_dict(saved.tensors["model"])
            optimisers.load_state(saved.tensors["optimisers"], saved.values["optimisers"])
            restore_random_state(saved.tensors["random"], saved.values["random"])
        run.start(step)
        while step < STEPS:
            tokens = batch()
            optimisers.zero_grad()
            loss = model(tokens[:, :-1], targets=tokens[:, 1:])
            loss.backward()
            optimisers.set_schedule_factor(SCHEDULE.factor(step, STEPS))
            optimisers.step()
            step += 1
            run.record(step, {"loss": float(loss.detach())})
            if step == killed_at:
                raise KilledError
            if step % 2 == 0:
                run.sync()
                state = capture_random_state()
                save_checkpoint(
                    run.folder / CHECKPOINTS,
                    step,
                    {
                        "model": model.state_dict(),
                        "optimisers": optimisers.state_tensors(),
                        "random": state.tensors,
                    },
                    {"optimisers": optimisers.state_values(), "random": state.values},
                    metric=float(loss.detach()),
                )
    return model.state_dict()


@pytest.mark.parametrize("scheme", ["scale-invariant-p-rope", "logn-rope", "fox"])
@pytest.mark.parametrize("kills", [(1,), (2,), (5,), (3, 4, 7, 8)])
def test_a_killed_training_ends_as_one_that_was_not(tmp_path, kills, scheme):
    expected = train(tmp_path / "whole", 1, scheme=scheme)
    for killed_at in kills:
        with pytest.raises(KilledError):
            train(tmp_path / "killed", 1, killed_at=killed_at, scheme=scheme)
    found = train(tmp_path / "killed", 1, scheme=scheme)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    whole, killed = ((tmp_path / n / "metrics.jsonl").read_bytes() for n in ("whole", "killed"))
    assert whole == killed
    assert len(whole.splitlines()) == STEPS
