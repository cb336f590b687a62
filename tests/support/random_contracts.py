"""Random calls of the op from a seed: every argument in all its forms, and odd shapes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_invariant_attention import DistanceAffine

LENGTHS = (1, 2, 3, 5, 7, 16, 17, 31, 33, 63, 64, 65, 100, 111, 129)
LONG = (200, 257, 300, 513)
LONGEST_TABLE = 10**5
HEAD_DIMS = (1, 3, 8, 16, 17, 32, 60, 64, 100, 128)


@dataclass
class Contract:
    """One call: its tensors, its other arguments, and the incoming gradients."""

    seed: int
    query: Tensor
    key: Tensor
    value: Tensor
    learned: dict[str, Tensor]  # tau, or gain and bias; key_bias
    settings: dict[str, Any]
    grad_out: Tensor
    grad_lse: Tensor

    @property
    def inputs(self) -> dict[str, Tensor]:
        """All tensors that receive a gradient."""
        return {"query": self.query, "key": self.key, "value": self.value, **self.learned}

    def arguments(self, inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Tensors and keyword arguments of the call, with its tensors replaced by `inputs`."""
        tensors = (inputs["query"], inputs["key"], inputs["value"])
        settings = dict(self.settings)
        if "gain" in inputs:
            settings["affine"] = DistanceAffine(inputs["gain"], inputs["bias"])
        elif "tau" in inputs:
            settings["tau"] = inputs["tau"]
        if "key_bias" in inputs:
            settings["key_bias"] = inputs["key_bias"]
        return tensors, settings

    def __str__(self) -> str:
        shapes = {name: tuple(t.shape) for name, t in self.inputs.items()}
        settings = {
            name: f"{value.dtype}{tuple(value.shape)}" if isinstance(value, Tensor) else value
            for name, value in self.settings.items()
        }
        return f"seed {self.seed}: {self.query.dtype} {shapes} {settings}"


def draw(
    seed: int,
    dtypes: tuple[torch.dtype, ...] | None = None,
    long_ones: bool = True,
    coordinates: bool = True,
) -> Contract:
    """Draw the contract of a seed; some have coordinates in place of positions, if they may."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def chance(probability: float) -> bool:
        return rng.random() < probability

    dtype = rng.choice(
        dtypes
        or (
            torch.float32,
            torch.float32,
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
        )
    )
    lengths = LONG if chance(0.1) and long_ones else LENGTHS
    # Long sequences have few rows and heads, so that no single contract takes long.
    many = (1, 2) if lengths is LONG else (1, 1, 2, 3)
    batch, key_heads, group = rng.choice(many), rng.choice(many), rng.choice(many)
    key_length = rng.choice(lengths)
    query_length = key_length if chance(0.5) else rng.choice(lengths)
    head_dim = rng.choice(HEAD_DIMS)
    value_dim = head_dim if chance(0.7) else rng.choice(HEAD_DIMS)
    heads = key_heads * group

    loudness = rng.choice((1.0, 1.0, 1.0, 4.0))
    query = _laid_out(loudness * normal(batch, heads, query_length, head_dim), dtype, rng)
    key = _laid_out(normal(batch, key_heads, key_length, head_dim), dtype, rng)
    value = _laid_out(normal(batch, key_heads, key_length, value_dim), dtype, rng)

    settings: dict[str, Any] = {"is_causal": chance(0.7)}
    if chance(0.2):
        settings["scale"] = rng.choice((0.05, 0.5, -0.1))
    if chance(0.4):
        settings["window"] = rng.randint(1, key_length + 3)
    if chance(0.3):
        settings["sinks"] = rng.choice((1, 2, 7))
    settings |= _positions(rng, generator, batch, query_length, key_length)
    if coordinates and random.Random(-seed).random() < 0.25:
        settings = _with_coordinates(settings, seed, batch, query_length, key_length)
    settings |= _documents(rng, generator, batch, query_length, key_length)
    if chance(0.4):
        settings["key_mask"] = _key_mask(rng, generator, batch, key_length)

    learned = _affine(rng, normal, heads, _table_length(settings, query_length, key_length), dtype)
    grad_out = normal(batch, heads, query_length, value_dim).to(dtype)
    grad_lse = normal(batch, heads, query_length) * rng.choice((0.0, 1.0))
    if chance(0.25):
        # Any shape that broadcasts to [B, Hq, Lk].
        shape = (rng.choice((1, batch)), rng.choice((1, key_heads, heads)), key_length)
        learned["key_bias"] = _key_bias(rng, normal, shape, dtype)
    return Contract(seed, query, key, value, learned, settings, grad_out, grad_lse)


def _laid_out(tensor: Tensor, dtype: torch.dtype, rng: random.Random) -> Tensor:
    """The same values in one of several memory layouts, with NaN in the memory around them."""
    tensor = tensor.to(dtype)
    layout = rng.choice(("contiguous", "contiguous", "sequence first", "inside NaN"))
    if layout == "contiguous":
        return tensor
    if layout == "sequence first":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    batch, heads, length, size = tensor.shape
    around = torch.full((batch, heads, length + 2, size + 3), torch.nan, dtype=dtype)
    inside = around[:, :, 1:-1, 2:-1]
    inside.copy_(tensor)
    return inside


def _positions(
    rng: random.Random, generator: torch.Generator, batch: int, queries: int, keys: int
) -> dict[str, Tensor]:
    form = rng.choice(
        ("default",) * 4 + ("shifted", "rows", "gaps", "scattered", "keys only", "queries only")
    )
    every = torch.arange(max(queries, keys))
    last = every[:keys][keys - queries :] if queries <= keys else every[:queries]
    if form == "shifted":
        return {"query_positions": last + 1000, "key_positions": every[:keys] + 1000}
    if form == "rows":
        shift = torch.randint(0, 9, (batch, 1), generator=generator)
        return {"query_positions": last + shift, "key_positions": every[:keys] + shift}
    if form == "gaps":
        steps = torch.randint(1, 4, (batch, keys + queries), generator=generator)
        positions = steps.cumsum(1)
        return {
            "query_positions": positions[:, -queries:],
            "key_positions": positions[:, :keys].int(),
        }
    if form == "scattered":
        return {
            "query_positions": torch.randint(0, 2 * keys, (queries,), generator=generator),
            "key_positions": torch.randint(0, 2 * keys, (batch, keys), generator=generator),
        }
    if form == "keys only" and queries <= keys:
        return {"key_positions": every[:keys] * 2 - 3}
    if form == "queries only":
        return {"query_positions": torch.randint(0, keys, (queries,), generator=generator)}
    return {}


def _with_coordinates(
    settings: dict[str, Any], seed: int, batch: int, queries: int, keys: int
) -> dict[str, Any]:
    """The settings with coordinates in place of positions: a grid, scattered tokens, or distant ones."""
    rng, generator = random.Random(-seed), torch.Generator().manual_seed(seed)
    kept = {name: settings[name] for name in ("scale", "window") if name in settings}
    kept["is_causal"] = False
    n, form = rng.choice((1, 2, 2, 2, 3, 4)), rng.choice(("grid", "scattered", "rows", "far"))
    if form == "grid":
        side = max(1, round(max(queries, keys) ** (1 / n)))
        index = torch.arange(max(queries, keys))
        grid = torch.stack([index // side**d % (2 * side) for d in reversed(range(n))], -1)
        of_queries = grid[:keys][keys - queries :] if queries <= keys else grid[:queries]
        return {**kept, "query_coordinates": of_queries.int(), "key_coordinates": grid[:keys]}
    # Distant squares are rounded in float32. Tables reach only so far.
    reach = rng.choice((100, 10**4, 2**23)) if form == "far" else rng.choice((2, 9, 40))
    rows = (batch,) if form == "rows" else ()
    of_keys = torch.randint(-reach, reach, (*rows, keys, n), generator=generator)
    if queries <= keys and rng.random() < 0.3:
        return {**kept, "key_coordinates": of_keys}
    of_queries = torch.randint(-reach, reach, (queries, n), generator=generator)
    return {**kept, "query_coordinates": of_queries, "key_coordinates": of_keys}


def _documents(
    rng: random.Random, generator: torch.Generator, batch: int, queries: int, keys: int
) -> dict[str, Tensor]:
    form = rng.choice(("none",) * 5 + ("packed", "rows", "mixed"))
    if form == "none":
        return {}
    if form == "mixed":
        return {
            "query_documents": torch.randint(0, 3, (queries,), generator=generator),
            "key_documents": torch.randint(-1, 3, (batch, keys), generator=generator),
        }
    rows = (batch,) if form == "rows" else ()
    ends = torch.rand(*rows, keys, generator=generator) < 2 / keys
    documents = ends.long().cumsum(-1)
    if queries <= keys:
        return {"key_documents": documents}
    return {
        "key_documents": documents,
        "query_documents": documents[..., :1].expand(*rows, queries),
    }


def _key_mask(rng: random.Random, generator: torch.Generator, batch: int, keys: int) -> Tensor:
    form = rng.choice(("left", "right", "random", "row"))
    padding = torch.randint(0, keys + 1, (batch, 1), generator=generator)
    if form == "left":
        return torch.arange(keys) >= padding
    if form == "right":
        return torch.arange(keys) < padding
    if form == "row":
        return (torch.rand(batch, 1, generator=generator) < 0.5).expand(batch, keys)
    return torch.rand(batch, keys, generator=generator) < 0.7


def _key_bias(
    rng: random.Random,
    normal: Callable[..., Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Independent numbers or cumulative decays, some with hidden keys, in the dtype or a wider one."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    form = rng.choice(("normal", "decay", "hidden"))
    bias = normal(*shape)
    if form == "decay":
        bias = -torch.nn.functional.logsigmoid(2 + bias).cumsum(-1)
    if form == "hidden":
        bias = bias.where(normal(*shape) < 0.5, -torch.inf)
    return _laid_out(bias.unsqueeze(-1), rng.choice((exact, exact, dtype)), rng).squeeze(-1)


def _table_length(settings: dict[str, Any], queries: int, keys: int) -> int:
    if "key_coordinates" in settings:
        given = [settings.get("query_coordinates"), settings["key_coordinates"]]
        points = torch.cat([it.long().flatten(0, -2) for it in given if it is not None])
        squared = (points.amax(0) - points.amin(0)).square().sum()
        length = math.isqrt(int(squared)) + 2
        return min(length, settings["window"] + 1) if "window" in settings else length
    given = [settings.get("query_positions"), settings.get("key_positions")]
    positions = [*(p for p in given if p is not None), torch.tensor([0, keys - queries, keys])]
    span = max(int(p.max()) for p in positions) - min(int(p.min()) for p in positions) + 1
    return min(span, settings["window"]) if "window" in settings else span


def _affine(
    rng: random.Random,
    normal: Callable[..., Tensor],
    heads: int,
    length: int,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """One of the three forms of tau, or of the forms of gain and bias tables."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    form = rng.choice(("number", "tau", "tau by head", "shared", "by head", "mixed", "alibi"))
    if length > LONGEST_TABLE:
        form = "tau by head"
    if form == "number":
        return {}
    if form == "tau":
        return {"tau": torch.tensor(10 ** rng.uniform(-1, 2), dtype=exact)}
    if form == "tau by head":
        return {"tau": torch.exp(2 * normal(heads)).to(exact)}
    if form == "alibi":
        slopes = torch.tensor([2.0 ** -(h + 1) for h in range(heads)], dtype=exact)
        tables = DistanceAffine.alibi(length, slopes)
        return {"gain": tables.gain.to(exact), "bias": tables.bias.to(exact)}
    gain_rows = () if form == "shared" else (heads,)
    bias_rows = (heads,) if form == "by head" else ()
    gain = 1 + 0.3 * normal(*gain_rows, length)
    return {"gain": gain.to(exact), "bias": normal(*bias_rows, length).to(exact)}
