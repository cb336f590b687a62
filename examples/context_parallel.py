"""Context parallelism in a small GPT: one long sequence over all processes, trained for a few steps.

    torchrun --nproc-per-node 2 examples/context_parallel.py --length 4096 --steps 20

Every process holds a part of the tokens. Only attention looks at other parts.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import scale_invariant_attention as sia

LAYERS, HEADS, WIDTH, VOCABULARY = 2, 4, 64, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, layout: sia.SequenceLayout, method: str) -> Tensor:
        qkv = self.qkv(F.rms_norm(x, (WIDTH,))).unflatten(-1, (3, HEADS, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        size = query.shape[-1:]
        at = layout.positions(x.device)
        query, key = (sia.p_rope(F.rms_norm(t, size), at, base=256.0) for t in (query, key))
        attended = sia.context_parallel_attention(query, key, value, layout=layout, method=method)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(F.rms_norm(x, (WIDTH,)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, layout: sia.SequenceLayout, method: str) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, layout, method)
        return self.head(F.rms_norm(x, (WIDTH,)))


def main(options: argparse.Namespace) -> None:
    on_gpus = torch.cuda.is_available()
    # Besides NCCL, gloo: small messages between CPUs make no GPU wait.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(0)  # the same weights and tokens in every process
    model = GPT().to(device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    tokens = torch.randint(0, VOCABULARY, (1, options.length // 8)).repeat(1, 10).to(device)
    tokens = tokens[:, : options.length + 1]
    layout = sia.SequenceLayout.of_group(options.length)
    # Targets are shifted before the sequence is cut: the next token may be on another rank.
    inputs = sia.shard_sequence(tokens[:, :-1], layout)
    targets = sia.shard_sequence(tokens[:, 1:], layout)
    for step in range(options.steps):
        logits = model(inputs.tensor, layout, options.method)
        # The sum of all processes' losses is the mean over all tokens.
        losses = F.cross_entropy(logits.flatten(0, 1), targets.tensor.flatten(), reduction="sum")
        loss = losses / options.length
        optimiser.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimiser.step()
        total = loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: loss {total:.4f}")
    whole = sia.unshard_sequence(inputs.with_tensor(logits.detach().argmax(-1)))
    if dist.get_rank() == 0:
        right = (whole == tokens[:, 1:]).float().mean()
        print(f"{dist.get_world_size()} processes, {options.length} tokens: {right:.1%} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--method", default="ring", choices=("ring", "gather", "heads"))
    main(parser.parse_args())
