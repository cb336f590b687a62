"""Muon: momentum for matrices, with updates orthogonalised so that all singular values are near 1.

    buffer += (1 - momentum) (gradient - buffer)
    update  = orthogonalised(gradient + momentum (buffer - gradient))
    weight -= rate max(1, rows / columns)^0.5 update

This is the arithmetic of ``torch.optim.Muon`` except for its precision: that one orthogonalises in
bfloat16, which CPUs without units for it multiply hundreds of times more slowly than float32.

For a sharded weight each rank holds its part of the buffer. The update is gathered, every rank
orthogonalises all of it and applies its part.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

from ..arguments import real_number
from ..attention.numerics import compute_dtype, without_autocast
from ._parallel import part_like, whole

# An odd polynomial that is steep at 0: applied five times, it brings singular values above 0.01 to about
# 0.7 ... 1.2, faster than one that would converge to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, for matrices that may be sharded.

    Its state has the names and meaning of ``torch.optim.Muon``'s. `lr` is the rate before the factor for
    matrices with more rows than columns, `momentum` the fraction of the buffer that is kept at each
    step, and `dtype` the one to orthogonalise in; None means the weights' dtype, at least float32.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        dtype: torch.dtype | None = None,
    ) -> None:
        real_number("lr", lr, at_least=0)
        if not 0 <= real_number("momentum", momentum) < 1:
            raise ValueError(f"momentum must be at least 0 and less than 1, got {momentum}")
        self.dtype = dtype
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, of matrices only."""
        super().add_param_group(param_group)
        for weight in self.param_groups[-1]["params"]:
            if weight.ndim != 2:
                self.param_groups.pop()
                got = f"one of shape {tuple(weight.shape)}"
                raise ValueError(
                    f"params must be matrices, got {got}; use another optimiser for it"
                )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group["lr"], group["momentum"])
        return loss

    def _update(self, weight: Tensor, gradient: Tensor, rate: float, momentum: float) -> None:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - momentum)
        update = orthogonalised(whole(gradient.lerp(buffer, momentum)), self.dtype)
        rows, columns = weight.shape
        update = part_like(update.to(weight.dtype), weight)
        weight.add_(update, alpha=-rate * max(1, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A matrix ``[rows, columns]`` with the same singular vectors and singular values of 0.68 to 1.16.

    Five Newton-Schulz steps ``X <- a X + (b X X' + c (X X')^2) X``, in `dtype`, by default float32 or
    wider. A zero matrix stays zero; singular values below a hundredth of the matrix's norm rise less.

    >>> matrix = torch.diag(torch.tensor([300.0, 20.0, 4.0]))
    >>> orthogonalised(matrix).diag()
    tensor([0.6989, 1.1265, 0.9296])
    """
    a, b, c = COEFFICIENTS
    rows, columns = matrix.shape
    # Gives the smaller of the two Gram matrices.
    x = matrix.T if rows > columns else matrix
    x = x.to(compute_dtype(x.dtype) if dtype is None else dtype)
    with without_autocast(x.device):
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(STEPS):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if rows > columns else x
