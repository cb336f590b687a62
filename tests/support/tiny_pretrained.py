"""A pretrained model that a second has trained, and its list."""

from tiny_training import TINY as TINY_TRAINING

from scale_invariant_attention.lab.experiments.pretrained import Miniature, package, write_list
from scale_invariant_attention.lab.experiments.table1 import SCALES
from scale_invariant_attention.lab.experiments.table2 import fine_tuned

NAME, NEEDLES = "sia-mini-rope", "sia-needles-rope"
TINY = TINY_TRAINING | {"length": 128}
FEW = {"lengths": (32, 64), "tokens": 256}


def tiny_miniature():
    """The model `NAME`, but tiny."""
    return Miniature(NAME, SCALES["mini"].trial("rope", 0, TINY, FEW))


def tiny_needles():
    """The model `NEEDLES`, but tiny."""
    changes = {"growth_steps": 2, "steps": 4, "warmup_steps": 1, "constant_steps": 1}
    changes |= {"validation_lengths": (128,)}
    [trial] = fine_tuned(
        [tiny_miniature().trial], "mini", changes, {"lengths": (128, 160), "examples": 2}
    )
    return Miniature(NEEDLES, trial)


def write_pretrained(folder, *miniatures):
    """Train and package models in a folder, with their list beside them; returns the list's path."""
    models = {
        it.name: package(it, folder / "runs", folder / "results", folder / "pretrained")
        for it in miniatures
    }
    write_list(folder / "pretrained.json", models)
    return folder / "pretrained.json"
