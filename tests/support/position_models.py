"""Stand-ins for a GPT with known losses."""

import torch


class LossIsPosition:
    """A model whose loss at index i is i; records its inputs."""

    def __init__(self):
        self.shown = []

    def __call__(self, tokens, targets, *, reduction):
        assert reduction == "none"
        assert not torch.is_grad_enabled()
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        self.shown.append((tokens, targets))
        return torch.arange(targets.shape[1], dtype=torch.float32).expand(targets.shape)


class LossIsTarget:
    """A model whose loss for a target is the target's id."""

    def __call__(self, tokens, targets, *, reduction):
        return targets.float()
