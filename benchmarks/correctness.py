"""Whether a rival computes the right thing: output and gradients against the float64 reference."""

import torch
from torch import Tensor

import scale_invariant_attention as sia
from rivals import TAU, Attention, Rival

# Nothing here is a multiple of a tile or of a vector.
SHAPE = (2, 3, 111, 60)


def fault(rival: Rival) -> str | None:
    """What is wrong with a rival, None if nothing is.

    Its error may be at most twice that of the reference in float32, plus rounding. One that does
    not transform is held against gain 1 and bias 0.
    """
    length = SHAPE[2]
    if rival.transforms:
        affine = sia.DistanceAffine.scale_invariant(length, TAU, dtype=torch.float64)
    else:
        affine = sia.DistanceAffine.identity(length)

    def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = sia.distance_affine_attention(query, key, value, affine, backend="reference")
        return out

    exact = _results(reference, torch.float64, rival.trains)
    plain = _results(reference, torch.float32, rival.trains)
    try:
        given = _results(rival.attention, torch.float32, rival.trains)
    except Exception as raised:
        return f"{rival.name} raises {type(raised).__name__}: {raised}"
    for name, right in exact.items():
        if given[name].shape != right.shape:
            return f"{rival.name} is wrong: {name} has the shape {tuple(given[name].shape)}"
        rounding = 8 * torch.finfo(torch.float32).eps * right.abs().max()
        allowed = 2 * (plain[name] - right).abs().max() + rounding
        error = (given[name] - right).abs().max()
        # Put so that NaN is a fault.
        if not error <= allowed:
            return f"{rival.name} is wrong: {name} errs by {error:.2g}, allowed is {allowed:.2g}"
    return None


def _results(attention: Attention, dtype: torch.dtype, backward: bool) -> dict[str, Tensor]:
    """Output and, where wanted, gradients, for the same float32 numbers in any dtype."""
    generator = torch.Generator().manual_seed(0)
    *inputs, grad = torch.randn(4, *SHAPE, generator=generator).to(dtype).unbind()
    if not backward:
        with torch.no_grad():
            return {"output": attention(*inputs)}
    inputs = [tensor.requires_grad_() for tensor in inputs]
    out = attention(*inputs)
    names = ("query gradient", "key gradient", "value gradient")
    gradients = torch.autograd.grad(out, inputs, grad)
    return {"output": out.detach()} | dict(zip(names, gradients, strict=True))
