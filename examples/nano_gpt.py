"""A GPT from scratch on scale-invariant attention: packed training, generation with a KV cache.

    python examples/nano_gpt.py                 # minutes on a CPU; nothing is downloaded
    python examples/nano_gpt.py --tau 1e12      # nothing is far: plain attention, to compare
    python examples/nano_gpt.py --bfloat16 --compile

Only `Attention` differs from a plain GPT: queries and keys are normalised (QK-norm) and rotated by
p-RoPE, and `scale_invariant_attention` replaces `scaled_dot_product_attention`.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scale_invariant_attention as sia
from scale_invariant_attention.data import SameTokens, Windows, standard_library

LAYERS, WIDTH, HEADS, LENGTHS = 4, 128, 2, (256, 1024, 4096)  # trained at the first length


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


class Attention(nn.Module):
    def __init__(self, tau: float) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.tau = tau

    def forward(self, x: Tensor, positions: Tensor, cache: list | None, visible: dict) -> Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        base = LENGTHS[0] / 16  # it goes with the training length
        query, key = (sia.p_rope(norm(x), positions, base=base) for x in (query, key))
        if cache is not None:  # new queries, and all keys so far
            cache.append((key, value))
            key, value = (torch.cat(parts, 2) for parts in zip(*cache, strict=True))
        out = sia.scale_invariant_attention(query, key, value, tau=self.tau, **visible)
        return self.output(out.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    def __init__(self, tau: float = 10.0) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.attentions = nn.ModuleList(Attention(tau) for _ in range(LAYERS))
        up, down = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
        mlps = (nn.Sequential(nn.Linear(*up), nn.GELU(), nn.Linear(*down)) for _ in range(LAYERS))
        self.mlps = nn.ModuleList(mlps)

    def forward(self, tokens: Tensor, positions=None, caches=(None,) * LAYERS, **visible) -> Tensor:
        x = self.embedding(tokens)
        positions = torch.arange(tokens.shape[1]) if positions is None else positions
        for attention, mlp, cache in zip(self.attentions, self.mlps, caches, strict=True):
            x = x + attention(norm(x), positions, cache, visible)
            x = x + mlp(norm(x))
        return self.head(norm(x)).float()


def loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    # A window holds parts of several documents, which begin with byte 0. None sees another.
    return F.cross_entropy(model(tokens, key_documents=(tokens == 0).cumsum(1)).mT, targets)


@torch.inference_mode()
def generate(model: GPT, prompts: list[bytes], new_tokens: int) -> list[bytes]:
    """Continue prompts of several lengths, padded on the left, where positions are negative."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([list(prompt.rjust(longest, b"\0")) for prompt in prompts])
    positions = torch.arange(longest + new_tokens) - (tokens == 0).sum(1, keepdim=True)
    caches, new = [[] for _ in range(LAYERS)], slice(0, longest)
    while new.stop < positions.shape[1]:
        past = positions[:, : new.stop]
        visible = {"key_positions": past, "key_mask": past >= 0}
        logits = model(tokens[:, new], positions[:, new], caches, **visible)[:, -1]
        tokens = torch.cat((tokens, torch.multinomial((logits / 0.8).softmax(-1), 1)), 1)
        new = slice(new.stop, new.stop + 1)
    return [bytes(row).lstrip(b"\0") for row in tokens.tolist()]


def main(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = GPT(options.tau)
    run = torch.compile(model) if options.compile else model
    batches = Windows(standard_library("train"), length=LENGTHS[0], batch_size=16, order="shuffled")
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(options.steps):
        with torch.autocast("cpu", enabled=options.bfloat16):
            found = loss(run, *batches[step])
        optimiser.zero_grad()
        found.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {found.item():.3f}", flush=True)
    same = SameTokens(standard_library("validation"), LENGTHS, at_most=16 * LENGTHS[-1])
    for length in LENGTHS:
        with torch.inference_mode():
            losses = [loss(model, *it).item() for it in same.batches(length, batch_size=1)]
        print(f"held-out loss with {length:,} tokens: {sum(losses) / len(losses):.3f}", flush=True)
    for text in generate(model, [b"import ", b"def __init__("], 100):
        print(f"\n{text.decode(errors='replace')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--tau", type=float, default=10.0)
    parser.add_argument("--bfloat16", action="store_true", help="train under autocast")
    parser.add_argument("--compile", action="store_true", help="compile the model for training")
    main(parser.parse_args())
