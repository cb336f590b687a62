"""Extending a model: losses, the choice on held-out text, what is saved, resuming, refusals."""

import json
import shutil
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hugging_face_models import some_tokens, tiny
from transformers import AutoModelForCausalLM

from scale_invariant_attention import huggingface
from scale_invariant_attention.data import SameTokens, TokenStream
from scale_invariant_attention.data.tokens import token_source
from scale_invariant_attention.evaluation import loss_by_length
from scale_invariant_attention.evaluation.losses import LengthLoss
from scale_invariant_attention.huggingface import extension
from scale_invariant_attention.huggingface.extension import Candidate, Losses, TokenLosses

LENGTH, FACTOR = 16, 4
OPTIONS = {
    "factor": FACTOR,
    "train_length": LENGTH,
    "rotaries": ("yarn", "own"),
    "taus": (10.0, 1.0),
    "tokens": 2 * FACTOR * LENGTH,
}


def sample():
    """Tokens in which every one repeats the one eight before it, so that context helps."""
    return some_tokens(600).view(-1, 8).repeat(1, 2).flatten()


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extended")
    model, found = huggingface.extend(tiny(), None, sample(), folder, **OPTIONS)
    return model, found, folder


@pytest.mark.parametrize("family", ["llama", "gpt-neox", "gemma3", "mixtral"])
def test_losses_in_pieces_are_those_of_the_whole(family):
    model, tokens = tiny(family), some_tokens(2, 38)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.no_grad():
        logits = model(inputs).logits
        expected = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none"
        )
        # 10 tokens of two rows at a time.
        found = TokenLosses(model, logits_at_once=20 * 96)(inputs, targets)
        mean = TokenLosses(model)(inputs, targets, reduction="mean")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean, expected.mean())
    assert "forward" not in vars(model.base_model)


def test_the_best_candidate_is_saved_with_its_scores(extended):
    model, found, folder = extended
    names = [(it.rotary, it.tau) for it in found.candidates]
    assert names[:2] == [("yarn", 10.0), ("own", 10.0)]
    first = min(found.candidates[:2], key=lambda it: it.losses.mean)
    assert names[2:] == [(first.rotary, 1.0)]
    assert found.chosen == min(found.candidates, key=lambda it: it.losses.mean)
    settings = model.config.scale_invariant_attention
    assert (settings["rotary"], settings["options"]["tau"]) == (
        found.chosen.rotary,
        found.chosen.tau,
    )
    assert len(settings["calibration"]["spread"]) == 2 and "mean" not in settings["calibration"]
    assert model.config.max_position_embeddings == 64
    loaded = AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = some_tokens(1, 50)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    card = (folder / "model" / "README.md").read_text()
    assert "import scale_invariant_attention.huggingface" in card
    assert f"| {LENGTH} | {found.before.by_length[0].loss:.3f} |" in card


def test_candidates_are_compared_text_by_text(extended):
    _, found, _ = extended
    for it in found.candidates:
        assert len(it.losses.by_stretch) == 2
        assert sum(it.losses.by_stretch) / 2 == pytest.approx(it.losses.mean)
        above = it.losses.above(found.chosen.losses)
        assert above.mean == pytest.approx(it.losses.mean - found.chosen.losses.mean)
    first, second = (
        Losses((), (), by_stretch) for by_stretch in ((1.0, 2.0, 6.0), (1.5, 2.5, 6.5))
    )
    # The texts differ a lot, the models by the same on each.
    assert (second.above(first).mean, second.above(first).standard_error) == (0.5, 0.0)


def test_losses_before_and_after_are_on_text_that_nothing_was_chosen_on(extended):
    model, found, _ = extended
    tokens = sample()
    size = 2 * FACTOR * LENGTH + 1
    report = TokenStream([tokens[-size:].numpy()], vocab_size=96, document_start=-1)
    same = SameTokens(report, (LENGTH, FACTOR * LENGTH))
    assert [row.length for row in found.before.by_length] == [LENGTH, FACTOR * LENGTH]
    for of_model, recorded in ((tiny(), found.before), (model, found.after)):
        expected = loss_by_length(TokenLosses(of_model), same)
        for one, other in zip(recorded.by_length, expected, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert recorded.by_position[-1].stop == FACTOR * LENGTH + 1
    # The choice was made on other tokens.
    assert found.chosen.losses.by_length[0].loss != found.after.by_length[0].loss


def test_a_mean_is_given_on_request(tmp_path):
    options = {**OPTIONS, "rotaries": ("own",), "taus": (10.0,), "with_mean": True}
    model, _ = huggingface.extend(tiny("qwen3"), None, sample(), tmp_path, **options)
    assert len(model.config.scale_invariant_attention["calibration"]["mean"]) == 2


def test_what_an_earlier_version_recorded_is_measured_again(extended, tmp_path):
    _, whole, folder = extended
    shutil.copytree(folder, tmp_path / "old")
    path = tmp_path / "old" / "extension.json"
    record = json.loads(path.read_text())
    del record["losses"]["before"]["by_stretch"]
    path.write_text(json.dumps(record))
    _, found = huggingface.extend(tiny(), None, sample(), tmp_path / "old", **OPTIONS)
    assert found.before == whole.before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(losses=[]), "cannot be read at losses: it must be an object, got"),
        (lambda it: it.update(scores="x"), "cannot be read at scores: it must be an object, got"),
        (
            lambda it: it["losses"]["before"]["by_length"][0].update(loss="2"),
            r"at losses.before: by_length\[0\].loss must be a real number, got '2'",
        ),
        (
            lambda it: it["losses"]["before"].update(by_position=[3]),
            r"at losses.before: by_position\[0\] must be an object, got 3",
        ),
        (
            lambda it: it["losses"]["before"].update(by_stretch={"a": 1}),
            "at losses.before: by_stretch must be a list",
        ),
        (
            lambda it: it["losses"]["before"]["by_length"][0].update(loss=float("inf")),
            r"must have a finite number as losses.before.by_length\[0\].loss, got inf",
        ),
        (lambda it: it["scores"].update(yarn=[1]), "cannot be read at scores.yarn"),
        (lambda it: it["scores"].update(yarn={"spread": ["a"]}), "cannot be read at scores.yarn"),
    ],
)
def test_a_hostile_record_is_named_with_its_field(extended, tmp_path, change, message):
    shutil.copytree(extended[2], tmp_path / "old")
    path = tmp_path / "old" / "extension.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=message) as caught:
        huggingface.extend(tiny(), None, sample(), tmp_path / "old", **OPTIONS)
    assert str(path) in str(caught.value)


def test_an_interrupted_extension_resumes(extended, tmp_path):
    _, whole, _ = extended

    class StoppedHereError(Exception):
        pass

    def stop(name, done, total):
        if name.startswith("own"):
            raise StoppedHereError

    with pytest.raises(StoppedHereError):
        huggingface.extend(tiny(), None, sample(), tmp_path, watch=stop, **OPTIONS)
    kept = json.loads((tmp_path / "extension.json").read_text())["losses"]
    assert list(kept) == ["before", "yarn, tau 10"]
    assert not (tmp_path / "model").exists()
    seen = []
    _, found = huggingface.extend(
        tiny(), None, sample(), tmp_path, watch=lambda *news: seen.append(news), **OPTIONS
    )
    assert found.after == whole.after and found.chosen == whole.chosen
    assert seen[0][0] == "before" and seen[-1][1] == seen[-1][2]
    # What was measured is reported once, as done; the rest piece by piece.
    assert [name for name, _, _ in seen].count("yarn, tau 10") == 1

    with pytest.raises(ValueError, match="holds another extension, which differs in model"):
        huggingface.extend(tiny(seed=1), None, sample(), tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match=r"differs in lengths .*: pass another folder"):
        huggingface.extend(tiny(), None, sample(), tmp_path, **{**OPTIONS, "factor": 2})
    # The losses after the extension, and the saved model, are those of the best candidate.
    with pytest.raises(ValueError, match="differs in rotaries and taus"):
        others = {"rotaries": ("ntk",), "taus": (3.0,)}
        huggingface.extend(tiny(), None, sample(), tmp_path, **{**OPTIONS, **others})


def test_fine_tuning_follows(tmp_path):
    recipe = huggingface.PretrainingRecipe(
        4 * 4 * LENGTH, LENGTH, 4, learning_rate=1e-2, warmup_steps=0
    )
    options = {**OPTIONS, "rotaries": ("own",), "taus": (10.0,), "fine_tune": recipe}
    seen = []
    model, found = huggingface.extend(
        tiny(), None, sample(), tmp_path, watch=lambda *news: seen.append(news), **options
    )
    tuned = found.fine_tuned.by_length[0].loss
    assert tuned < found.after.by_length[0].loss
    assert found.cost == tuned - found.before.by_length[0].loss
    card = (tmp_path / "fine-tuning" / "model" / "README.md").read_text()
    assert "| tokens | loss before | loss after | loss fine-tuned |" in card
    assert f" {tuned:.3f} |" in card
    # One scale for everything, on which each of the four steps counts its tokens.
    done = [tokens for name, tokens, _ in seen if name == "fine-tuning"]
    assert [after - before for before, after in pairwise(done)] == [4 * LENGTH] * 3 + [0]
    assert [tokens for _, tokens, _ in seen] == sorted(tokens for _, tokens, _ in seen)
    assert seen[-1][1] == seen[-1][2]
    assert found.model_folder == tmp_path / "fine-tuning" / "model"
    again, same = huggingface.extend(tiny(), None, sample(), tmp_path, **options)
    assert same.fine_tuned == found.fine_tuned
    ids = some_tokens(1, 50)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model.eval()(ids).logits)


def test_scores_are_measured_once_for_each_rotary(extended, monkeypatch):
    model, found, folder = extended
    recorded = json.loads((folder / "extension.json").read_text())["scores"]
    assert list(recorded) == ["yarn", "own"]
    used = model.config.scale_invariant_attention["calibration"]["spread"]
    assert recorded[found.chosen.rotary]["spread"] == used

    def measured_again(*arguments):
        raise AssertionError("measured again")

    monkeypatch.setattr(extension, "measure_scores", measured_again)
    _, same = huggingface.extend(tiny(), None, sample(), folder, **OPTIONS)
    assert same == found


@pytest.mark.parametrize(
    ("losses", "reach"),
    [
        ((1.0, 1.04, 1.05), 4096),
        ((1.0, 0.9, 1.06), 1024),
        ((1.0, 2.0, 1.0), 256),
    ],
)
def test_reach_is_the_length_up_to_which_the_loss_stays_near(losses, reach):
    rows = [
        LengthLoss(length, loss, None, 4096)
        for length, loss in zip((256, 1024, 4096), losses, strict=True)
    ]
    before, after = Losses((LengthLoss(256, 0.8, None, 4096),), (), ()), Losses(tuple(rows), (), ())
    chosen = Candidate("slow", 10.0, after)
    found = huggingface.Extension(256, 16, (chosen,), chosen, before, after, None, Path("model"))
    assert found.reach == reach
    assert found.cost == pytest.approx(0.2)


def test_attention_dropout_is_found_before_anything_is_measured(tmp_path):
    model = tiny(attention_dropout=0.1)
    options = {**OPTIONS, "rotaries": ("own", "yarn"), "tokens": 64}
    with pytest.raises(NotImplementedError, match=r"config.json has attention_dropout 0\.1"):
        huggingface.extend(model, None, sample(), tmp_path / "new", fine_tune=10**6, **options)
    assert not (tmp_path / "new").exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        huggingface.extend(model, None, sample(), tmp_path / "new", **options)
    assert ["attention_dropout 0.1" in str(it.message) for it in caught] == [True]


def test_text_may_be_tokens_batches_or_a_string():
    class Letters:
        bos_token_id = None

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [ord(letter) for letter in text]}

    ids = some_tokens(4, 10)
    for text in (ids, list(ids), ids.flatten()):
        source = token_source(text, None, 96)
        assert source.read(0, 40).tolist() == ids.flatten().tolist()
    assert token_source("AB", Letters(), 96).read(0, 2).tolist() == [65, 66]
    for text, error, message in [
        ("AB", TypeError, "tokenizer must be given"),
        (torch.tensor([95, 96]), ValueError, "below the model's vocab_size, 96, got 96"),
        (7, TypeError, "got a int"),
    ]:
        with pytest.raises(error, match=message):
            token_source(text, None, 96)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 1}, "factor must be at least 2, got 1"),
        ({"factor": 64}, r"text must have at least 2,306 tokens for contexts of 1,024, got 1,200"),
        ({"factor": 2, "tokens": 0}, "tokens must be at least 1, got 0"),
        ({"rotaries": ("yarm",)}, "rotaries must be one or more of own, .*did you mean 'yarn'"),
        (
            {"fine_tune": 20 * 16 * LENGTH},
            "fine_tune must be more than 5,120 tokens, got 5,120: a step has 256, and the first 20",
        ),
        ({"rotaries": "yarn"}, "rotaries must be one or more of"),
        ({"taus": ()}, "taus must be one or more numbers"),
        ({"taus": (0.0,)}, "taus must be greater than 0, got 0.0"),
    ],
)
def test_wrong_arguments_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        huggingface.extend(tiny(), None, sample(), tmp_path / "new", **{**OPTIONS, **changes})
    assert not (tmp_path / "new").exists()


def test_what_convert_refuses_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="soft cap"):
        huggingface.extend(tiny("gemma2"), None, sample(), tmp_path / "new", **OPTIONS)
    assert not (tmp_path / "new").exists()
