"""A problem of the benchmark: its sizes, its inputs and the work that it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .rivals import Attention, Rival

FORWARD, FORWARD_AND_BACKWARD, DECODE = "forward", "forward+backward", "decode"
PASSES = (FORWARD, FORWARD_AND_BACKWARD, DECODE)

# By the names of the command line.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Where and in which dtype a problem runs."""

    device: str = "cpu"
    dtype_name: str = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of query, key and value."""
        return DTYPES[self.dtype_name]

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return torch.device(self.device).type == "cuda"


PLAIN = Setting()


class Inputs(NamedTuple):
    """Query, key, value and the gradient of the output."""

    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor


@dataclass(frozen=True)
class Problem:
    """Causal attention over `length` keys; as many queries, or one when decoding."""

    heads: int
    head_dim: int
    length: int
    pass_name: str
    batch: int = field(default=1, repr=False)
    setting: Setting = field(default=PLAIN, repr=False)

    @classmethod
    def named(cls, shape: str, length: str, pass_name: str) -> "Problem":
        """The problem in the words of the command line.

        >>> Problem.named("6x128", "4096", "forward")
        Problem(heads=6, head_dim=128, length=4096, pass_name='forward')
        """
        sizes = shape.split("x")
        if len(sizes) != 2 or not all(map(_is_count, sizes)):
            raise ValueError(f"shape must be heads x head size, as in 6x128; got {shape!r}")
        if not _is_count(length):
            raise ValueError(f"length must be a number of tokens, as in 4096; got {length!r}")
        if pass_name not in PASSES:
            raise ValueError(f"pass must be one of {', '.join(PASSES)}; got {pass_name!r}")
        return cls(int(sizes[0]), int(sizes[1]), int(length), pass_name)

    def __str__(self) -> str:
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.shape}, {self.length:,} tokens, {self.pass_name}{batch}"

    @property
    def shape(self) -> str:
        """Heads and head size, as in ``6x128``."""
        return f"{self.heads}x{self.head_dim}"

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self.pass_name == FORWARD_AND_BACKWARD

    @property
    def queries(self) -> int:
        """Number of queries, which are the last positions."""
        return 1 if self.pass_name == DECODE else self.length

    @property
    def flops(self) -> float:
        """The work of the exact causal triangle.

        Two products of 2 D operations for each visible pair: L (L + 1) / 2 pairs, or L for one query.
        Backward takes five such products, one of which recomputes the scores: 3.5 times in all.
        """
        pairs = self.queries * (2 * self.length - self.queries + 1) // 2
        passes = 3.5 if self.backward else 1
        return 4 * self.batch * self.heads * self.head_dim * pairs * passes

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values, all of which a single query must read."""
        numbers = 2 * self.batch * self.heads * self.length * self.head_dim
        return numbers * self.setting.dtype.itemsize

    def unsupported_reason(self, rival: Rival, memory_limit: float) -> str | None:
        """Why a rival cannot run this problem within a limit in bytes; None if it can."""
        if self.backward and not rival.trains:
            return "it has no backward pass here"
        numbers = self.batch * self.heads * self.queries * self.length
        scores = numbers * self.setting.dtype.itemsize
        needed = rival.score_matrices * scores
        if needed > memory_limit:
            return (
                f"{rival.score_matrices} score matrices would take {needed / 2**30:.1f} GiB, "
                f"and {memory_limit / 2**30:.3g} GiB are allowed"
            )
        return None

    def inputs(self) -> Inputs:
        """Tensors of unit variance, the same every time."""
        device, dtype = torch.device(self.setting.device), self.setting.dtype
        generator = torch.Generator(device).manual_seed(0)

        def normal(tokens: int, *, requires_grad: bool) -> Tensor:
            shape = (self.batch, self.heads, tokens, self.head_dim)
            numbers = torch.randn(shape, generator=generator, device=device).to(dtype)
            return numbers.requires_grad_(requires_grad)

        query, key, value = (
            normal(tokens, requires_grad=self.backward)
            for tokens in (self.queries, self.length, self.length)
        )
        return Inputs(query, key, value, normal(self.queries, requires_grad=False))

    def run(
        self, attention: Attention, inputs: Inputs, parameters: Sequence[Tensor] = ()
    ) -> Callable[[], tuple[Tensor, ...]]:
        """The function to time, which returns output and gradients, also those of `parameters`."""
        *tensors, grad = inputs

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (attention(*tensors),)

        def forward_and_backward() -> tuple[Tensor, ...]:
            out = attention(*tensors)
            return out, *torch.autograd.grad(out, (*tensors, *parameters), grad)

        return forward_and_backward if self.backward else forward


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0
