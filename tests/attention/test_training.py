"""A small transformer learns the same on the compiled kernels as on the definition."""

import argparse
import inspect

import torch
from backend_names import needs_kernels
from torch import nn

import scale_invariant_attention as sia

STEPS, BATCH, LENGTH = 200, 2, 110
WIDTH, HEADS, KEY_HEADS, LAYERS = 32, 4, 2, 2


class Block(nn.Module):
    """Attention with normalised queries and keys, grouped heads and a tau that learns, and an MLP."""

    def __init__(self):
        super().__init__()
        self.head_size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (
            nn.Linear(WIDTH, KEY_HEADS * self.head_size, bias=False) for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.log_tau = nn.Parameter(torch.linspace(0, 4, HEADS))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x, attention):
        normed = self.norms[0](x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = (nn.functional.rms_norm(t, t.shape[-1:]) for t in (query, key))
        heard = attention(query, key, value, tau=self.log_tau.exp())
        x = x + self.out(heard.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, tokens, attention):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, attention)
        return self.out(x)


def losses(attention, steps=STEPS, dtype=torch.float32):
    """The loss of every step of training on the source of a module of Python's own."""
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    torch.manual_seed(0)
    model = Transformer().to(dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1))
        tokens = text[starts + torch.arange(LENGTH + 1)]
        logits = model(tokens[:, :-1], attention)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


def with_backend(backend):
    return lambda *inputs, **settings: sia.scale_invariant_attention(
        *inputs, **settings, backend=backend
    )


def with_a_key_gradient_one_percent_too_large(query, key, value, **settings):
    if key.requires_grad:
        key.register_hook(lambda grad: 1.01 * grad)
    return sia.scale_invariant_attention(query, key, value, **settings, backend="cpu")


@needs_kernels
def test_training_is_the_same_as_with_the_definition():
    """Every loss within the rounding that training itself makes large.

    The distance of the float32 definition from float64 shows how much that is. The kernels round
    elsewhere and may end up somewhat farther away; a gradient that is wrong by a hundredth is
    outside of this long before the end.
    """
    exact = losses(with_backend("reference"), dtype=torch.float64)
    assert exact[-20:].mean() < exact[0] / 2  # something is learned

    def error(attention, steps=STEPS):
        return (losses(attention, steps) - exact[:steps]).abs().max()

    allowed = 8 * error(with_backend("reference"))
    assert error(with_backend("cpu")) <= allowed
    assert error(with_a_key_gradient_one_percent_too_large, STEPS // 2) > 10 * allowed
