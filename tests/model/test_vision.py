"""The vision transformer: attention by Euclidean distance, and canvases of any size."""

import math

import pytest
import torch
from tiny_models import assert_same
from torch.nn.functional import scaled_dot_product_attention

from scale_invariant_attention.model import VisionConfig, VisionTransformer
from scale_invariant_attention.schemes import alibi_slopes

ROWS, COLUMNS, HEADS, HEAD = 3, 5, 2, 8
NAMES = (
    *("nope", "rope", "p-rope", "logn-rope", "alibi"),
    *("scale-invariant-nope", "scale-invariant-p-rope"),
)
OPTIONS = {"logn-rope": {"train_length": 9}}


def tiny(name="nope", **fields):
    sizes = {"patch": 2, "layers": 2, "width": HEADS * HEAD, "heads": HEADS}
    options = OPTIONS.get(name, {})
    config = VisionConfig(**{"scheme_name": name, "scheme_options": options, **sizes, **fields})
    torch.manual_seed(0)
    model = VisionTransformer(config, backend="reference").double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, dtype=torch.float64))
    return model


def norm(x):
    return x / (x * x).mean(-1, keepdim=True).sqrt()


def expected(model, images):
    """The features before the head, written without the package: every pair of patches by itself."""
    config = model.config
    patches = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(images), -1, 4)
    rows, columns = images.shape[1] // 2, images.shape[2] // 2
    places = [(row, column) for row in range(rows) for column in range(columns)]
    x = norm(model.embedding(patches))
    rotary = config.scheme.rotary
    turns = [] if rotary is None else rotary.frequencies(HEAD // 2, 1).tolist()
    for block in model.blocks:
        attention, y = block.attention, norm(x)
        heads = (
            layer(y).view(*y.shape[:2], HEADS, HEAD).transpose(1, 2)
            for layer in (attention.query, attention.key, attention.value)
        )
        query, key, value = heads
        query, key = norm(query), norm(key)
        if turns:
            angles = [
                [row * f for f in turns] + [column * f for f in turns] for row, column in places
            ]
            turns_of = torch.tensor(angles, dtype=torch.float64)
            turned = torch.polar(torch.ones_like(turns_of), turns_of)
            query, key = (_turned(it, turned) for it in (query, key))
        bias = torch.zeros(HEADS, len(places), len(places), dtype=torch.float64)
        gain = torch.ones_like(bias)
        for head in range(HEADS):
            for i, here in enumerate(places):
                for j, there in enumerate(places):
                    r = math.dist(here, there)
                    if config.scheme_name == "alibi":
                        bias[head, i, j] = -alibi_slopes(HEADS)[head] * r
                    elif config.scheme_name.startswith("scale-invariant"):
                        u = math.log1p(r / config.scheme.distance.tau)
                        gain[head, i, j], bias[head, i, j] = math.sqrt(1 + 4 * u), -4 * u
        if config.scheme.query_scale is not None:
            scales = attention.scheme.query_scale.scale * math.log(len(places))
            query = query * scales[:, None, None]
        logits = gain * (query @ key.transpose(-1, -2)) / math.sqrt(HEAD) + bias
        mixed = (logits.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + attention.output(mixed)
        x = x + block.mlp(norm(x))
    return norm(x)


def _turned(x, rotation):
    turned = torch.complex(x[..., : HEAD // 2], x[..., HEAD // 2 :]) * rotation
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_the_definition(name):
    model, images = tiny(name, classes=7), torch.randn(2, 2 * ROWS, 2 * COLUMNS).double()
    assert_same(model(images), model.head(expected(model, images).amax(1)))
    pixels = tiny(name)
    assert_same(pixels(images), pixels.head(expected(pixels, images)))


@pytest.mark.parametrize("name", NAMES)
def test_backends_agree_and_every_weight_learns(name):
    model, images = tiny(name, classes=7, grid=3), torch.randn(2, 10, 14).double()
    found = model(images)
    model.backend = "tiled"
    assert_same(model(images), found)
    hidden = torch.rand(2, 35) < 0.5
    model(images, hidden).square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_a_window_is_a_disc():
    model = tiny("alibi", layers=1, patch=1, scheme_options={"window": 2})
    image = torch.randn(1, 5, 5).double()
    other = image.clone()
    other[0, 2, 2] += 1
    changed = (model(image) != model(other)).view(5, 5)
    # Neighbours along the sides and the diagonals are closer than 2.
    expected = torch.zeros(5, 5, dtype=torch.bool)
    expected[1:4, 1:4] = True
    assert torch.equal(changed, expected)


def test_without_a_scheme_patches_are_a_set():
    model, images = tiny("nope"), torch.randn(1, 6, 6).double()
    other = images.clone()
    other[:, :2, :2], other[:, 4:, 2:4] = images[:, 4:, 2:4], images[:, :2, :2]
    order = [7, 1, 2, 3, 4, 5, 6, 0, 8]
    assert_same(model(other), model(images)[:, order])


@pytest.mark.parametrize("name", NAMES)
def test_a_mirrored_image_is_seen_alike_unless_frequencies_rotate(name):
    model, images = tiny(name, patch=1), torch.randn(1, 4, 5).double()
    mirrored = model(images.flip(2)).view(4, 5).flip(1)
    if "rope" not in name:
        assert_same(mirrored, model(images).view(4, 5))
    else:
        with pytest.raises(AssertionError):
            assert_same(mirrored, model(images).view(4, 5))


def test_hidden_patches_are_not_seen():
    model, images = tiny("alibi"), torch.randn(1, 4, 4).double()
    hidden = torch.tensor([[True, False, False, False]])
    other = images.clone()
    other[0, :2, :2] += 1
    assert torch.equal(model(images, hidden), model(other, hidden))
    assert not torch.equal(model(images), model(other))


def test_a_grid_is_interpolated_for_other_sizes():
    model = tiny("nope", grid=3)
    assert torch.equal(model._grid_for(3, 3), model.grid.flatten(1).T)
    assert model._grid_for(6, 4).shape == (24, HEADS * HEAD)
    with torch.no_grad():
        model.grid.copy_(torch.tensor([[0.0], [1.0], [4.0]]))
    wide = model._grid_for(6, 4).view(6, 4, -1)
    # It differs from row to row, from the first to the last, and not from column to column.
    assert_same(wide, wide[:, :1, :1].expand_as(wide))
    assert (wide[1:, 0, 0] > wide[:-1, 0, 0]).all()
    with torch.no_grad():
        model.grid.copy_(model.grid.mT.clone())
    assert_same(model._grid_for(4, 6).view(4, 6, -1), wide.transpose(0, 1))


def test_attention_without_a_scheme_is_sdpa():
    model = tiny("nope", layers=1)
    x = norm(torch.randn(2, 9, HEADS * HEAD).double())
    attention = model.blocks[0].attention
    query, key = attention.queries_and_keys(x)
    value = attention._split(attention.value(x))
    out = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    assert_same(attention(x, model._forward_pass(3, 3, x)), attention.output(out))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme_name": "fox"}, "without a key_bias"),
        ({"scheme_name": "infini-rope"}, "without a memory"),
        ({"scheme_name": "rope-ntk", "scheme_options": {"train_length": 9}}, "same for all sizes"),
        ({"scheme_name": "rope,nope"}, "one scheme for all layers"),
        ({"scheme_name": "scale-invariant-without-bias"}, "leave the transform whole"),
        (
            {"scheme_name": "rope", "width": 12},
            "head_dim must be a multiple of 4 for 2 coordinates",
        ),
        ({"width": 15}, "width must be a multiple of heads, got width=15 and heads=2"),
        ({"classes": 0}, "classes must be at least 1, got 0"),
        ({"scheme_options": 5}, "scheme_options must be a dict, got 5"),
    ],
)
def test_what_has_no_meaning_in_the_plane_is_refused(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tiny(fields.pop("scheme_name", "nope"), **fields)


@pytest.mark.parametrize(
    ("images", "hidden", "message"),
    [
        (torch.zeros(1, 5, 4), None, "multiples of the patch of 2 pixels, got 5 x 4"),
        (torch.zeros(1, 3, 4, 4), None, r"images must be floating \[batch, height, width\], got"),
        (torch.zeros(1, 4, 4, dtype=torch.long), None, "images must be floating"),
        (
            torch.zeros(1, 4, 4),
            torch.zeros(1, 3, dtype=torch.bool),
            r"hidden must be bool \[1, 4\]",
        ),
    ],
)
def test_bad_inputs_are_refused(images, hidden, message):
    with pytest.raises(ValueError, match=message):
        tiny().float()(images, hidden)


def test_a_backend_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"backend must be one of auto, .*; got 'cud'"):
        VisionTransformer(VisionConfig(), backend="cud")
