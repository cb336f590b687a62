"""Recipes: complete configurations by name, the paper's and two for CPUs."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..arguments import did_you_mean
from .config import TrainingConfig
from .training_data import corpus_encoding


def recipe(name: str, **changes: Any) -> TrainingConfig:
    """A recipe by name, with some fields changed.

    Shards of more tokens than the recipe has set its `vocab_size`, unless it is given too.

    >>> recipe("162m-4k", scheme="rope").steps
    4578
    """
    if name not in RECIPES:
        hint = f"{did_you_mean(name, RECIPES)}; the recipes are: {', '.join(RECIPES)}"
        raise ValueError(f"there is no recipe {name!r}{hint}")
    fields = RECIPES[name]().to_dict()
    if isinstance(data := changes.get("data"), str):
        # If the data cannot be read, opening it will say why.
        with suppress(OSError, ValueError):
            fields["vocab_size"] = max(fields["vocab_size"], corpus_encoding(data).vocab_size)
    return TrainingConfig.from_dict(fields | changes)


def paper_162m(length: int) -> TrainingConfig:
    """The paper's 162M on 2.4B tokens of FineWeb, 524,288 per step, at one of its three lengths."""
    return TrainingConfig(
        vocab_size=50_304,
        layers=12,
        width=768,
        heads=6,
        data="shards:fineweb10B",
        order="sequential",
        length=length,
        batch_size=524_288 // length,
        micro_batch_size=max(1, 32_768 // length),
        steps=4578,
        schedule="trapezoid",
        constant_steps=3270,
        matrix_rate=0.02,
        embedding_rate=0.3,
        head_rate=0.002,
        scalar_rate=0.002,
        validate_every=125,
        validation_tokens=10_485_760,
        validation_lengths=(4096, 16_384, 65_536),
        precision="bfloat16",
        compile=True,
    )


def paper_304m() -> TrainingConfig:
    """The paper's 304M on 10.0B tokens of FineWeb, 917,504 per step."""
    return replace(
        paper_162m(4096),
        layers=16,
        width=1024,
        heads=8,
        data="shards:fineweb100B",
        batch_size=917_504 // 4096,
        steps=10_900,
        schedule="cosine",
        constant_steps=None,
        matrix_rate=0.015,
        validate_every=250,
    )


def small() -> TrainingConfig:
    """Four times the parameters of "mini", twice its training length, three times its tokens."""
    return TrainingConfig(
        width=256,
        length=512,
        steps=2250,
        validate_every=250,
        validation_lengths=(512, 2048, 8192),
        checkpoint_every=50,
    )


RECIPES: dict[str, Callable[[], TrainingConfig]] = {
    # Less than a million parameters, trained on the source of Python in minutes on one core.
    "mini": partial(TrainingConfig, steps=1500),
    # Three million parameters and three times as many tokens, in hours on one core.
    "small": small,
    "162m-4k": partial(paper_162m, 4096),
    "162m-16k": partial(paper_162m, 16_384),
    "162m-64k": partial(paper_162m, 65_536),
    "304m-4k": paper_304m,
}
