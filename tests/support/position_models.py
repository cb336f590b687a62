"""Models whose losses are known beforehand, in place of a GPT."""

import torch


class LossIsPosition:
    """Says that the target at index i costs i, whatever it is; and what it was shown."""

    def __init__(self):
        self.shown = []

    def __call__(self, tokens, targets, *, reduction):
        assert reduction == "none"
        assert not torch.is_grad_enabled()
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        self.shown.append((tokens, targets))
        return torch.arange(targets.shape[1], dtype=torch.float32).expand(targets.shape)


class LossIsTarget:
    """Says that a target costs its own number."""

    def __call__(self, tokens, targets, *, reduction):
        return targets.float()
