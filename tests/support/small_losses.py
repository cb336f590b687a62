"""A small cross-entropy problem, and its loss in plain torch."""

import torch
import torch.nn.functional as F

from scale_invariant_attention.model.loss import IGNORED

VOCABULARY, WIDTH = 11, 5


def problem(dtype=torch.float64, tokens=(2, 7), ignored=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*tokens, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCABULARY, tokens, generator=generator)
    targets.view(-1)[torch.randperm(targets.numel(), generator=generator)[:ignored]] = IGNORED
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def plain(hidden, weight, targets, reduction):
    logits = hidden.flatten(0, -2) @ weight.T
    result = F.cross_entropy(logits.double(), targets.reshape(-1).long(), reduction=reduction)
    return result.reshape(targets.shape) if reduction == "none" else result


def token_factors(result):
    return torch.arange(1, 1 + result.numel(), dtype=result.dtype).view(result.shape).cos()
