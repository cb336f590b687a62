"""Packaging of recorded runs: weights, card and hashes, of models that reproduce their records."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_records import needle_record, record
from tiny_pretrained import NAME, NEEDLES, tiny_miniature, write_pretrained

from scale_invariant_attention.files.manifest import signed_text
from scale_invariant_attention.lab.experiments import pretrained as packaging
from scale_invariant_attention.lab.experiments.pretrained import (
    NotReproducedError,
    check_reproduced,
    miniatures,
    model_card,
    package,
)
from scale_invariant_attention.lab.records import read_record
from scale_invariant_attention.model import GPT, pretrained, pretrained_models
from scale_invariant_attention.model.pretrained import PREFIX
from scale_invariant_attention.provenance import CHANGED
from scale_invariant_attention.training import TrainingConfig, open_trained

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_pretrained(folder, tiny_miniature())
    return folder


def test_a_packaged_model_is_that_of_the_run_in_half_precision(written):
    folder = written / "pretrained" / NAME
    packaged, trained = GPT.from_pretrained(folder), open_trained(written / "runs" / "rope-seed-0")
    for name, weight in trained.model.named_parameters():
        assert (weight.half().float() == packaged.get_parameter(name)).all()
    assert open_trained(folder).training == tiny_miniature().trial.config


def test_packaging_again_needs_no_run_and_changes_nothing(written, tmp_path):
    shutil.copytree(written / "pretrained", tmp_path / "pretrained")
    listed = write_pretrained(tmp_path, tiny_miniature())
    assert not (tmp_path / "runs").exists() and not (tmp_path / "results").exists()
    assert listed.read_bytes() == (written / "pretrained.json").read_bytes()


def test_a_model_that_differs_from_its_record_is_refused(written, tmp_path):
    shutil.copytree(written / "results", tmp_path / "results")
    path = tmp_path / "results" / "rope-seed-0.json"
    values = json.loads(path.read_text())
    values["losses"][1]["loss"] += 0.002
    path.write_bytes(signed_text(values))
    with pytest.raises(NotReproducedError, match=rf"{NAME} must have the loss .* at 64 tokens"):
        package(tiny_miniature(), written / "runs", tmp_path / "results", tmp_path / "pretrained")
    assert not list((tmp_path / "pretrained").iterdir())


def test_needles_are_compared_too():
    miniature = miniatures()[NEEDLES]
    recorded = needle_record("rope", 0, (1.0, 0.5, 0.0))
    check_reproduced(miniature, recorded, needle_record("rope", 0, (0.99, 0.5, 0.01)))
    with pytest.raises(
        NotReproducedError, match=r"the needles 0.5000 at 1,024 tokens.* got 0.4800"
    ):
        check_reproduced(miniature, recorded, needle_record("rope", 0, (1.0, 0.48, 0.0)))


def test_the_card_is_made_from_the_record():
    made = replace(record("alibi", 0, (1.1, 1.2346, 1.3)), seconds=812.3)
    card = model_card(miniatures()["sia-mini-alibi"], made, 851_968)
    for text in (
        "# sia-mini-alibi\n\nA GPT of 851,968 parameters with the position scheme `alibi`, trained\n",
        "| 1,024 (4x) | 1.235 |",
        "sia evaluate sia-mini-alibi --lengths 256,1024,4096",
        "1,500 steps of 16 x 256 tokens",
        f"commit {made.provenance.commit}, torch 2.13.0, Processor, 812 s",
        "stored as\nfloat16 and loaded as float32",
        "## Limits",
    ):
        assert text in card


def test_the_card_of_a_model_for_needles_shows_needles():
    card = model_card(miniatures()[NEEDLES], needle_record("rope", 0, (1.0, 0.5, 0.0)), 851_968)
    assert "| context length | needles |" in card and "| 1,024 (4x) | 0.500 |" in card
    assert f"sia needle {NEEDLES} --lengths 256,1024,4096" in card
    assert "sia generate" not in card
    assert (
        "300 steps of 32 x 256 tokens, Muon and Adam, seed 0, from the model rope-seed-0 |" in card
    )


def test_all_names_have_the_prefix():
    assert all(name.startswith(PREFIX) for name in miniatures())


@pytest.mark.parametrize("model", pretrained_models().values(), ids=lambda it: it.name)
def test_the_repository_has_the_listed_models_with_their_cards(model):
    folder = REPOSITORY / pretrained.FOLDER / model.name
    assert {path.name for path in folder.iterdir() if path.is_file()} == model.files.keys()
    assert pretrained.find_pretrained(model.name, source=folder.parent) == folder
    miniature = miniatures()[model.name]
    recorded = read_record(folder / pretrained.RECORD, TrainingConfig)
    assert CHANGED not in recorded.provenance.commit
    assert recorded.config == miniature.trial.config
    card = (folder / pretrained.CARD).read_text()
    assert card == model_card(miniature, recorded, model.parameters)
    assert model.by_length == pytest.approx(miniature.values(recorded), abs=1e-4)


def test_the_repository_is_not_much_larger_for_them():
    assert sum(model.bytes for model in pretrained_models().values()) < 12e6
    assert packaging.STORED_DTYPE.itemsize == 2
