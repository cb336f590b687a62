"""Synthetic records of trainings, in the form written by `lab.experiments.trials`."""

from dataclasses import asdict

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.experiments import recall, table2
from scale_invariant_attention.lab.experiments.scales import SCALES

LENGTHS = (256, 1024, 4096)


def record(scheme, seed, losses, **options):
    """Record of a miniature trial with the given losses."""
    trial = SCALES["mini"].trial(scheme, seed, **options)
    return _record(trial) | {
        "evaluation": {"lengths": list(LENGTHS), "tokens": 131_072},
        "losses": [
            {"length": length, "loss": loss, "standard_error": 0.02, "tokens": 131_072}
            for length, loss in zip(LENGTHS, losses, strict=True)
        ],
        "by_position": [
            {"start": 1, "stop": 2, "loss": 4.0, "standard_error": 0.1, "documents": 27},
            {"start": 2, "stop": 4097, "loss": losses[-1], "standard_error": 0.1, "documents": 27},
        ],
    }


def needle_record(scheme, seed, shares):
    """Record of a Table 2 trial with the given retrieval accuracies."""
    [trial] = table2.needle_trials("mini", (scheme,), (seed,))
    return _record(trial) | {"needles": {"lengths": _found(trial, shares)}}


def recall_record(scheme, seed, shares):
    """Record of a recall trial with the given accuracies."""
    [trial] = recall.recall_trials("mini", (scheme,), (seed,))
    return _record(trial) | {"recall": _found(trial, shares)}


def _found(trial, shares):
    return [
        {"length": length, "found": round(100 * share), "count": 100}
        for length, share in zip(trial.evaluation.lengths, shares, strict=True)
    ]


def _record(trial):
    return {
        "config": trial.config.to_dict(),
        "evaluation": asdict(trial.evaluation),
        "trained_as": trial.training_name,
        "training": {"loss": [5.5, 2.0], "gradient_norm": [1.0, 0.5]},
        "validation": [{"step": 2, "validation": {"256": 2.0}}],
        "seconds": 240.0,
        "corpus": "0" * 64,
        "provenance": {
            "date": "2026-01-02T03:04:05+00:00",
            "commit": "c" * 40,
            "version": "0.1.0",
            "torch": "2.13.0",
            "python": "3.11.7",
            "cpu": "Processor",
            "threads": "1",
            "load": "0.00",
        },
    }


def table(losses_of, seeds=(0, 1, 2)):
    """Records of every scheme and seed; `losses_of(scheme, seed)` returns the losses."""
    return [record(name, seed, losses_of(name, seed)) for seed in seeds for name in schemes.names()]
