"""Conversions of models of transformers that take a second."""

from dataclasses import replace

from scale_invariant_attention.lab.experiments.evaluations import (
    LossEvaluation,
    NeedleEvaluation,
    StringEvaluation,
)

LENGTH = 16
SMALL = {"length": LENGTH, "batch_size": 4, "checkpoint_every": 2}
MODEL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": LENGTH,
}
EVALUATIONS = {
    LossEvaluation: LossEvaluation((LENGTH, 4 * LENGTH), 8 * LENGTH),
    StringEvaluation: StringEvaluation((LENGTH, 4 * LENGTH), examples=3, letters=6, prefix=2),
    # No shorter text holds a needle and its answer.
    NeedleEvaluation: NeedleEvaluation((80, 160), examples=3),
}


def shrunk(trial):
    """The same trial with a one-layer model and short trainings."""
    config = trial.config
    first, continued, needles = config.first, config.continued, config.needles
    model = {**config.model, **MODEL}
    if "head_dim" in model:
        model["head_dim"] = 8
    if needles is not None:
        recipe = replace(needles.recipe, tokens=2 * 2 * 80, length=80, batch_size=2, warmup_steps=0)
        needles = replace(needles, recipe=recipe, first_length=70, growth_steps=1)
    config = replace(
        config,
        model=model,
        first=replace(first, tokens=4 * 4 * LENGTH, warmup_steps=0, **SMALL),
        continued=continued and replace(continued, tokens=2 * 4 * LENGTH, warmup_steps=0, **SMALL),
        needles=needles,
    )
    return replace(trial, config=config, evaluation=EVALUATIONS[type(trial.evaluation)])
