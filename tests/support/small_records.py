"""Synthetic records of trainings, in the form written by `lab.experiments.trials`."""

from dataclasses import replace

from scale_invariant_attention import schemes
from scale_invariant_attention.evaluation import LengthLoss, PositionLoss
from scale_invariant_attention.lab.experiments import images, leaderboard, masked, recall, table2
from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.experiments.table1 import SCALES
from scale_invariant_attention.lab.measurements import (
    ImageScores,
    NeedleShare,
    NeedleTable,
    Provenance,
    RecallShare,
    StringShare,
    TaskScores,
)
from scale_invariant_attention.lab.records import Record, TrainingCurve, Validation

LENGTHS = (256, 1024, 4096)

PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="c" * 40,
    version="0.1.0",
    torch="2.13.0",
    python="3.11.7",
    cpu="Processor",
    threads="1",
    load="0.00",
)


def record(scheme, seed, losses, **options):
    """A record of a trial of the miniature with these losses."""
    trial = SCALES["mini"].trial(scheme, seed, **options)
    made = record_of(
        trial,
        losses=tuple(
            LengthLoss(length, loss, 0.02, 131_072)
            for length, loss in zip(LENGTHS, losses, strict=True)
        ),
        by_position=(
            PositionLoss(1, 2, 4.0, 0.1, 27),
            PositionLoss(2, 4097, losses[-1], 0.1, 27),
        ),
    )
    return replace(made, evaluation=LossEvaluation(LENGTHS, 131_072))


def needle_record(scheme, seed, shares):
    """A record of a trial of Table 2 that found these shares."""
    [trial] = table2.needle_trials("mini", (scheme,), (seed,))
    rows = [
        NeedleShare(length, trial.evaluation.examples, round(100 * share), 100, 0.0, 1.0, -1.0)
        for length, share in zip(trial.evaluation.lengths, shares, strict=True)
    ]
    return record_of(trial, needles=NeedleTable(tuple(rows), ()))


def recall_record(scheme, seed, shares):
    """A record of a trial of the recall experiment that recalled these shares."""
    [trial] = recall.recall_trials("mini", (scheme,), (seed,))
    rows = [
        RecallShare(length, round(100 * share), 100, 0.0, 1.0)
        for length, share in zip(trial.evaluation.lengths, shares, strict=True)
    ]
    return record_of(trial, recall=tuple(rows))


def image_record(task, name, seed, scores):
    """A record of a vision transformer with these shares."""
    [trial] = images.image_trials(names=(name,), seeds=(seed,), tasks=(task,))
    rows = [
        ImageScores(size, 128, score, 1 - score, 0.01)
        for size, score in zip(trial.evaluation.lengths, scores, strict=True)
    ]
    return record_of(trial, images=tuple(rows))


def masked_record(scheme, seed, shares):
    """A record of an encoder that found these shares of the hidden bytes."""
    [trial] = masked.masked_trials(names=(scheme,), seeds=(seed,))
    rows = [
        TaskScores(length, round(100 * share), 100, 0.0, 1.0, 64, 0, 1.5)
        for length, share in zip(trial.evaluation.lengths, shares, strict=True)
    ]
    return record_of(trial, scores=tuple(rows))


def task_record(task, scheme, seed, scores):
    """A record of the leaderboard: shares of 100 answers, or losses above the optimum."""
    [trial] = leaderboard.leaderboard_trials(names=(scheme,), seeds=(seed,), tasks=(task,))
    counted = task not in ("fractal-noise", "motifs")
    rows = []
    for length, score in zip(trial.evaluation.lengths, scores, strict=True):
        found = round(100 * score) if counted else 50
        excess = () if counted else (score, 0.01)
        rows.append(TaskScores(length, found, 100, 0.1, 0.9, 64, found * 64 // 200, 1.5, *excess))
    return record_of(trial, scores=tuple(rows))


def conversion_record(trial, values):
    """A record of a converted model with these losses, or shares of what its evaluation counts."""
    found = list(zip(trial.evaluation.lengths, values, strict=False))
    shares = [(n, round(100 * it), 100, 0.0, 1.0) for n, it in found]
    measured = {
        "LossEvaluation": lambda: {"losses": tuple(LengthLoss(*it, 0.02, 65_536) for it in found)},
        "StringEvaluation": lambda: {
            "strings": tuple(StringShare(*it, 3.0 - it[1] / 100) for it in shares)
        },
        "NeedleEvaluation": lambda: {
            "needles": NeedleTable(
                tuple(NeedleShare(n, 50, *counted, -1.0) for n, *counted in shares), ()
            )
        },
    }[type(trial.evaluation).__name__]()
    made = record_of(trial, **measured)
    return replace(made, provenance=replace(PROVENANCE, transformers="5.0.0"))


def record_of(trial, **measured):
    """A record of a trial with these measurements, and a training of two steps."""
    return Record(
        config=trial.config,
        evaluation=trial.evaluation,
        trained_as=trial.training_name,
        corpus="0" * 64,
        training=TrainingCurve((5.5, 2.0), (1.0, 0.5)),
        validation=(Validation(2, {256: 2.0}),),
        seconds=240.0,
        provenance=PROVENANCE,
        name=trial.name,
        **measured,
    )


def table(losses_of, seeds=(0, 1, 2)):
    """Records of every scheme and seed; `losses_of` gives the losses of a scheme with a seed."""
    return [record(name, seed, losses_of(name, seed)) for seed in seeds for name in schemes.names()]
