"""What is trained, converted, measured and recorded for Table 4, each done once."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import huggingface
from ...data import SameTokens, Windows, standard_library
from ...evaluation import LengthLoss, loss_by_length
from ...files import check_writable, locked
from ...huggingface.continued_pretraining import (
    PretrainingRecipe,
    continue_pretraining,
    training_log,
)
from ...provenance import provenance
from .records import Record, read_record, shortened, write_record
from .table4 import Conversion

# Sequences of the training text that calibration measures scores on.
CALIBRATION_ROWS = 16

# Called with what is trained, the step and the loss.
Watch = Callable[[str, int, float], object]


def _ignore(*news: object) -> None:
    pass


class TokenLosses:
    """A model of transformers as evaluation takes it: the loss of every token.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=256)
    >>> tokens = torch.randint(256, (2, 8))
    >>> TokenLosses(LlamaForCausalLM(config))(tokens, tokens).shape
    torch.Size([2, 8])
    """

    def __init__(self, model: Any) -> None:
        self._model = model.eval()

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str = "none") -> Tensor:
        """Losses ``[B, L]``, or their mean or sum."""
        logits = self._model(tokens, use_cache=False).logits.float()
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction=reduction)


def run(
    trials: Sequence[Conversion],
    runs: Path,
    results: Path,
    *,
    watch: Watch = _ignore,
    done: Callable[[Conversion, Record], object] = _ignore,
) -> None:
    """Train and record what is not recorded yet, one after the other.

    Broken off, it goes on when it is called again. Several processes may do different schemes: the
    first training is done by one of them, while the others wait.

    Args:
        trials: in the order in which they are to be done.
        runs: the folder for the folders of their trainings.
        results: the folder for their records.
        watch: called with every step of a training.
        done: called with each record, those that are there too.
    """
    found = [(trial, recorded(trial, results)) for trial in trials]
    check_writable(results)
    for trial, record in found:
        done(trial, record or _made(trial, runs, results, watch))


def recorded(trial: Conversion, results: Path) -> Record | None:
    """The record of a conversion, if there is one."""
    wanted = _asked_for(trial)
    return read_record(
        results / f"{trial.name}.json",
        wanted,
        lambda record: {name: record[name] for name in wanted},
    )


def first_model(trial: Conversion, runs: Path, watch: Watch = _ignore) -> Any:
    """The model with RoPE that is converted: trained, gone on with, or opened."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = runs / trial.first_name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(trial.seed)
    model = LlamaForCausalLM(LlamaConfig(**trial.model))
    with locked(folder):
        recipe = replace(trial.first, seed=trial.seed)
        return _trained(model, folder, recipe, partial(watch, trial.first_name))


def converted(trial: Conversion, model: Any) -> Any:
    """The model as the scheme has it, before it is trained on."""
    if not trial.calibrated:
        return huggingface.convert(model, trial.scheme, **trial.options)
    # Scores are measured with the rotary that the model is going to have.
    base = {name: value for name, value in trial.options.items() if name == "base"}
    huggingface.convert(model, "p-rope", **base)
    rows = Windows(
        standard_library("train"),
        length=trial.first.length,
        batch_size=CALIBRATION_ROWS,
        order="shuffled",
        seed=trial.seed,
    )
    measured = huggingface.measure_scores(model, [rows[0][0]])
    return huggingface.convert(
        model, trial.scheme, calibration=measured.without_mean, **trial.options
    )


def _made(trial: Conversion, runs: Path, results: Path, watch: Watch) -> Record:
    folder = runs / trial.first_name
    model = converted(trial, first_model(trial, runs, watch))
    if trial.continued is not None:
        folder = runs / trial.name
        # Another order of the sequences than that of the first training.
        recipe = replace(trial.continued, seed=trial.seed + 1)
        model = _trained(model, folder, recipe, partial(watch, trial.name))
    log = training_log(folder)
    record = _asked_for(trial) | {
        "trained_as": folder.name,
        "losses": [asdict(row) for row in _losses(trial, model)],
        "training": {
            "loss": shortened(log["loss"]),
            "gradient_norm": shortened(log["grad_norm"]),
        },
        "seconds": round(sum(log["seconds"]), 1),
        "corpus": standard_library("validation").fingerprint(),
        "provenance": provenance() | {"transformers": version("transformers")},
    }
    return write_record(results / f"{trial.name}.json", record)


def _trained(
    model: Any, folder: Path, recipe: PretrainingRecipe, watch: Callable[[int, float], object]
) -> Any:
    return continue_pretraining(
        model, standard_library("train"), folder, recipe, watch=watch, use_cpu=True
    )


def _losses(trial: Conversion, model: Any) -> list[LengthLoss]:
    # Ascending, and on a model that has read nothing longer: dynamic NTK remembers the longest text.
    same = SameTokens(
        standard_library("validation"),
        sorted(trial.evaluation.lengths),
        at_most=trial.evaluation.tokens,
    )
    return loss_by_length(TokenLosses(model), same)


def _asked_for(trial: Conversion) -> Record:
    config = asdict(trial)
    evaluation = config.pop("evaluation")
    return {"config": config | {"scheme_options": trial.options}, "evaluation": evaluation}
