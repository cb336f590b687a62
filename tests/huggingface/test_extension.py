"""Extending a model: losses, the choice on held-out text, what is saved, resuming, refusals."""

import json

import pytest
import torch
from hugging_face_models import some_tokens, tiny
from transformers import AutoModelForCausalLM

from scale_invariant_attention import huggingface
from scale_invariant_attention.data import SameTokens, TokenStream
from scale_invariant_attention.evaluation import loss_by_length
from scale_invariant_attention.huggingface import extension
from scale_invariant_attention.huggingface.extension import TokenLosses

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

    with pytest.raises(ValueError, match=r"folder must be new or hold the same extension.*model"):
        huggingface.extend(tiny(seed=1), None, sample(), tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="another lengths"):
        huggingface.extend(tiny(), None, sample(), tmp_path, **{**OPTIONS, "factor": 2})


def test_fine_tuning_follows(tmp_path):
    recipe = huggingface.PretrainingRecipe(4 * 4 * LENGTH, LENGTH, 4, learning_rate=1e-2)
    options = {**OPTIONS, "rotaries": ("own",), "taus": (10.0,), "fine_tune": recipe}
    model, found = huggingface.extend(tiny(), None, sample(), tmp_path, **options)
    assert found.fine_tuned.by_length[0].loss < found.after.by_length[0].loss
    assert found.model_folder == tmp_path / "fine-tuning" / "model"
    again, same = huggingface.extend(tiny(), None, sample(), tmp_path, **options)
    assert same.fine_tuned == found.fine_tuned
    ids = some_tokens(1, 50)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model.eval()(ids).logits)


def test_text_may_be_tokens_batches_or_a_string():
    class Letters:
        bos_token_id = None

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [ord(letter) for letter in text]}

    model, ids = tiny(), some_tokens(4, 10)
    for text in (ids, list(ids), ids.flatten()):
        source = extension._token_source(model, None, text)
        assert source.read(0, 40).tolist() == ids.flatten().tolist()
    assert extension._token_source(model, Letters(), "AB").read(0, 2).tolist() == [65, 66]
    for text, error, message in [
        ("AB", TypeError, "tokenizer must be given"),
        (torch.tensor([95, 96]), ValueError, "below the model's vocab_size, 96, got 96"),
        (7, TypeError, "got a int"),
    ]:
        with pytest.raises(error, match=message):
            extension._token_source(model, None, text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 1}, "factor must satisfy factor >= 2, got 1"),
        ({"factor": 64}, r"text must have at least 2,306 tokens for contexts of 1,024, got 1,200"),
        ({"rotaries": ("yarm",)}, "rotaries must be one or more of own, .* got .*yarm"),
        ({"rotaries": "yarn"}, "rotaries must be one or more of"),
        ({"taus": ()}, "taus must be one or more numbers"),
        ({"taus": (0.0,)}, "taus must satisfy taus > 0, got 0.0"),
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
