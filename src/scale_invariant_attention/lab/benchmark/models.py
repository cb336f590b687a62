"""Whole models side by side: the scale-invariant scheme, and plain RoPE on torch's SDPA.

A training step is forward, loss, backward and a step of Adam; a decoding step adds one token to a cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from ...model import GPT, GPTConfig
from ...model.block import Attention, ForwardPass
from .records import AT_MOST, MODEL_TIME_TO_ROPE, ModelTiming, is_met
from .timing import Spread, interleaved

TRAIN, DECODE = "training step", "decode"
OURS, BASELINE = "scale-invariant-p-rope", "rope"


@dataclass(frozen=True)
class ModelProblem:
    """A model, a pass and a length."""

    name: str
    config: GPTConfig
    pass_name: str
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.name}, {self.pass_name}, {self.batch} x {self.length:,} tokens"


def model_problems(quick: bool) -> Iterator[ModelProblem]:
    """The preset `mini`, and 12 layers with heads of 64; smaller and shorter if `quick`."""
    mini = GPTConfig.preset("mini")
    layers = 1 if quick else 12
    deep = GPTConfig(layers=layers, width=768, heads=12, vocab_size=256 if quick else 50_304)
    name = f"{layers} layers, 12 heads of 64"
    yield ModelProblem("mini", mini, TRAIN, 1 if quick else 16, 256)
    yield ModelProblem(name, deep, TRAIN, 1, 64 if quick else 1024)
    yield ModelProblem(name, deep, DECODE, 1, 256 if quick else 32_768)


def measure_model(problem: ModelProblem, seconds: float) -> ModelTiming:
    """Time both models in turns, for at least `seconds` and three rounds."""
    side = _training_step if problem.pass_name == TRAIN else _decoding_step
    in_attention: list[float] = []
    ours, baseline = _model(problem, OURS), _model(problem, BASELINE)
    for layer in _attention_layers(ours):
        layer.attend = _timed(layer.attend, in_attention)  # type: ignore[method-assign]
    for layer in _attention_layers(baseline):
        layer.attend = plain_attention  # type: ignore[method-assign]
    times = interleaved({OURS: side(problem, ours), BASELINE: side(problem, baseline)}, seconds)
    rounds = len(times[OURS])
    # A step calls attention once per layer; the warm-up step is not counted.
    counted = in_attention[-rounds * problem.config.layers :]
    pairs = zip(times[OURS], times[BASELINE], strict=True)
    ratio = Spread.of([mine / theirs for mine, theirs in pairs])
    milliseconds = Spread.of([1e3 * value for value in times[OURS]])
    return ModelTiming(
        problem.name,
        problem.pass_name,
        problem.batch,
        problem.length,
        median_ms=milliseconds.median,
        low_ms=milliseconds.low,
        high_ms=milliseconds.high,
        baseline_ms=1e3 * median(times[BASELINE]),
        ratio=ratio.median,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        target=MODEL_TIME_TO_ROPE,
        met=is_met(ratio.median, AT_MOST, MODEL_TIME_TO_ROPE),
        attention_share=sum(counted) / sum(times[OURS]) if problem.pass_name == DECODE else None,
        rounds=rounds,
    )


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, call: ForwardPass, key_bias: Tensor | None = None
) -> Tensor:
    """Plain causal attention on torch's SDPA, in place of a layer's own."""
    # A decoding query is at the last position; SDPA would take it to be at the first.
    return F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


def _model(problem: ModelProblem, scheme: str) -> GPT:
    torch.manual_seed(0)
    return GPT(replace(problem.config, scheme_name=scheme))


def _attention_layers(model: GPT) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


def _training_step(problem: ModelProblem, model: GPT) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    text = _tokens(problem, problem.length + 1)

    def step() -> None:
        optimiser.zero_grad()
        model(text[:, :-1], targets=text[:, 1:]).backward()
        optimiser.step()

    return step


def _decoding_step(problem: ModelProblem, model: GPT) -> Callable[[], None]:
    config, before = problem.config, problem.length - 1
    cache = model.new_cache(room=problem.length)
    past = torch.randn(2, problem.batch, config.heads, before, config.head_dim)
    for layer in range(config.layers):
        cache.append(layer, *past)
    token = _tokens(problem, 1)

    @torch.no_grad()
    def step() -> None:
        # Every step overwrites the token of the last one, at the same length.
        cache.length = before
        model(token, cache=cache)

    return step


def _tokens(problem: ModelProblem, length: int) -> Tensor:
    return torch.randint(problem.config.vocab_size, (problem.batch, length))


def _timed(run: Callable[..., Tensor], seconds: list[float]) -> Callable[..., Tensor]:
    def timed(*arguments: Tensor | ForwardPass) -> Tensor:
        start = perf_counter()
        out = run(*arguments)
        seconds.append(perf_counter() - start)
        return out

    return timed
