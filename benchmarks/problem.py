"""One problem of the benchmark: its sizes, its inputs and the work that it takes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rivals import Rival

PASSES = {"forward": False, "forward+backward": True}


@dataclass(frozen=True)
class Problem:
    """Causal self-attention, batch 1, float32, forward alone or with backward."""

    heads: int
    head_dim: int
    length: int
    backward: bool

    @classmethod
    def named(cls, shape: str, length: str, pass_name: str) -> "Problem":
        """In the words of the command line: ``Problem.named("6x128", "4096", "forward")``."""
        sizes = [*shape.split("x"), length]
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"shape and length must be like 6x128 and 4096, got {shape}, {length}")
        if pass_name not in PASSES:
            raise ValueError(f"passes are {', '.join(PASSES)}; got {pass_name!r}")
        heads, head_dim, tokens = (int(size) for size in sizes)
        return cls(heads, head_dim, tokens, backward=PASSES[pass_name])

    @property
    def shape(self) -> str:
        """Heads and head size, as in ``6x128``."""
        return f"{self.heads}x{self.head_dim}"

    @property
    def pass_name(self) -> str:
        """One of `PASSES`."""
        return next(name for name, backward in PASSES.items() if backward == self.backward)

    @property
    def flops(self) -> float:
        """The work of the exact causal triangle, which no implementation can do without.

        Two products of 2 D operations for each of the L (L + 1) / 2 visible pairs; backward
        has five such products, one of them the scores over again, so that both take 3.5 times
        as much.
        """
        pairs = self.length * (self.length + 1) // 2
        return 4 * self.heads * self.head_dim * pairs * (3.5 if self.backward else 1)

    def objection(self, rival: Rival, memory_limit: int) -> str | None:
        """Why a rival does not take part, with a limit in bytes; None if it does."""
        if self.backward and not rival.trains:
            return "it has no backward"
        needed = rival.score_matrices * 4 * self.heads * self.length**2
        if needed > memory_limit:
            return f"{rival.score_matrices} score matrices would take {needed / 2**30:.1f} GiB"
        return None

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query, key, value and the gradient of the output, all of unit variance."""
        generator = torch.Generator().manual_seed(0)
        shape = (4, 1, self.heads, self.length, self.head_dim)
        query, key, value, grad = torch.randn(shape, generator=generator).unbind()
        query, key, value = (t.requires_grad_(self.backward) for t in (query, key, value))
        return query, key, value, grad

    def run(
        self, rival: Rival, inputs: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> Callable[[], object]:
        """The function to time."""
        *tensors, grad = inputs

        def forward() -> object:
            with torch.no_grad():
                return rival.attention(*tensors)

        def forward_and_backward() -> object:
            return torch.autograd.grad(rival.attention(*tensors), tensors, grad)

        return forward_and_backward if self.backward else forward
