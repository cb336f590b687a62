"""Table 4 conversions that take a second."""

from dataclasses import replace

from scale_invariant_attention.lab.experiments import table4
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation

LENGTH = 16
SMALL = {"length": LENGTH, "batch_size": 4, "checkpoint_every": 2}
LLAMA = table4.LLAMA | {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": LENGTH,
}


def tiny(*names, seeds=(0,)):
    """Trials of the named schemes, with a one-layer model."""
    return [shrunk(trial) for trial in table4.conversion_trials("mini", names, seeds)]


def shrunk(trial):
    """The same trial with a one-layer model and short trainings."""
    first, continued = trial.config.first, trial.config.continued
    config = replace(
        trial.config,
        model=dict(LLAMA),
        first=replace(first, tokens=4 * 4 * LENGTH, warmup_steps=0, **SMALL),
        continued=continued and replace(continued, tokens=2 * 4 * LENGTH, warmup_steps=0, **SMALL),
    )
    return replace(
        trial, config=config, evaluation=LossEvaluation((LENGTH, 4 * LENGTH), 8 * LENGTH)
    )
