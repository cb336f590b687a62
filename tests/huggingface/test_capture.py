"""The analysis of transformers models uses the scores that their attention computes."""

from functools import partial

import pytest
import torch
from hugging_face_models import FAMILIES, converted, left_padded, some_tokens, tiny

from scale_invariant_attention import huggingface
from scale_invariant_attention.analysis import attention_by_length, diagnose, score_statistics
from scale_invariant_attention.huggingface import transformers_scores

LENGTH = 37


def layers(model, tokens, **arguments):
    seen = []
    transformers_scores(model, tokens, seen.append, **arguments)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_weights_equal_the_models_own(family):
    """A plain model's own eager attention returns its weights."""
    model = tiny(family)
    tokens = some_tokens(2, LENGTH)
    seen = layers(model, tokens)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(tokens, output_attentions=True).attentions
    assert [it.layer for it in seen] == list(range(len(weights)))
    for scores, expected in zip(seen, weights, strict=True):
        (tile,) = scores.tiles()
        found = tile.logits.softmax(-1)
        if expected.sum(-1).min() < 0.99:
            # A learned sink takes weight, but is not a key.
            expected = expected / expected.sum(-1, keepdim=True)
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-3, atol=1e-5)


def test_captured_scores_come_with_the_tables_of_the_layer():
    model = converted()
    tokens = some_tokens(1, LENGTH)
    plain = layers(model, tokens)[0]
    measured = huggingface.measure_scores(model, [tokens])
    statistics = score_statistics(plain)
    torch.testing.assert_close(measured.mean[0], statistics.mean)
    torch.testing.assert_close(measured.spread[0], statistics.variance.sqrt())
    assert float(plain.affine.gain[..., 10]) == pytest.approx(
        (1 + 2 * torch.tensor(2.0).log()) ** 0.5
    )
    huggingface.convert(model, calibration=measured)
    calibrated = layers(model, tokens)[0]
    torch.testing.assert_close(calibrated.query, plain.query)
    growth = 2 * torch.tensor(2.0).log()
    expected = (1 + growth / measured.spread[0] ** 2).sqrt()
    torch.testing.assert_close(calibrated.affine.gain[:, 10].double(), expected)
    expected = -growth - (expected - 1) * measured.mean[0]
    torch.testing.assert_close(calibrated.affine.bias[:, 10].double(), expected)


def test_padding_is_hidden():
    model = converted()
    rows = [some_tokens(LENGTH), some_tokens(20, seed=1)]
    ids, mask = left_padded(rows)
    together = layers(model, ids, attention_mask=mask)[1]
    alone = layers(model, rows[1][None])[1]
    (tile,), (expected,) = together.tiles(), alone.tiles()
    found = tile.logits[1:, :, -20:, -20:].softmax(-1)
    torch.testing.assert_close(found, expected.logits.softmax(-1), rtol=1e-4, atol=1e-6)


def test_a_transformers_model_is_diagnosed():
    source = partial(transformers_scores, tiny())
    short, long = attention_by_length(source, some_tokens(2, 64), (32, 64))
    assert (short.length, long.length) == (32, 64)
    found = diagnose(long, scale_invariant=False, qk_norm=False, transformers=True)
    assert "wide scores" in found.advice
    assert "huggingface.measure_scores(" in found.advice["wide scores"]
