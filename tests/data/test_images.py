"""Images on canvases: reproducible examples, splits that share nothing, and textures without a scale."""

import numpy as np
import pytest
import torch

from scale_invariant_attention.data.images import IMAGE_TASKS, DigitsTask, TextureTask
from scale_invariant_attention.data.images._digits import split_digits
from scale_invariant_attention.data.images._patches import PHOTOGRAPHS, PhotographTask, photographs

every_task = pytest.mark.parametrize("name", IMAGE_TASKS)


@pytest.fixture(autouse=True)
def packages(request):
    """The packages of the extra `images`, which textures do not need."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    if name == "textures":
        return
    pytest.importorskip("sklearn")
    if name == "photographs" or "photograph" in request.node.name:
        pytest.importorskip("skimage")


@every_task
def test_batches_have_the_form_of_their_task(name):
    task = IMAGE_TASKS[name]()
    for size in (2, 5, 6):
        batch, side = task.batch(size, range(7)), size * task.patch
        assert batch.images.shape == (7, side, side) and batch.images.dtype == torch.float32
        if task.classes is None:
            assert batch.targets.shape == (7, size**2, task.patch**2)
            assert (batch.hidden.sum(1) == size**2 // 2).all()
        else:
            assert batch.hidden is None and batch.targets.shape == (7,)
            assert batch.targets.min() >= 0 and batch.targets.max() < task.classes


@every_task
def test_an_example_depends_on_split_seed_size_and_number_alone(name):
    task = IMAGE_TASKS[name]
    together, again = (task().batch(4, numbers) for numbers in (range(8), [5, 2, 11]))
    assert torch.equal(together.images[[5, 2]], again.images[:2])
    assert torch.equal(together.targets[[5, 2]], again.targets[:2])
    assert not torch.equal(together.images[5], again.images[2])
    for other in (task(seed=1), task(split="validation")):
        assert not torch.equal(other.batch(4, range(8)).images, together.images)


@every_task
def test_what_is_no_split_or_size_is_refused(name):
    with pytest.raises(ValueError, match="split must be 'train' or 'validation', got 'test'"):
        IMAGE_TASKS[name](split="test")
    with pytest.raises(ValueError, match="size must be at least"):
        IMAGE_TASKS[name]().batch(0, [0])


@every_task
def test_a_fingerprint_tells_splits_of_pictures_apart(name):
    prints = [IMAGE_TASKS[name](split=split).fingerprint() for split in ("train", "validation")]
    assert prints == [None, None] if name == "textures" else len(set(prints) - {None}) == 2
    assert prints[0] == IMAGE_TASKS[name](seed=1).fingerprint()


def test_the_digit_is_whole_and_its_label_right():
    digits, labels = split_digits("train")
    batch = DigitsTask(density=3.0).batch(4, range(50))
    for image, label in zip(batch.images.numpy(), batch.targets.tolist(), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(image, (8, 8)).reshape(-1, 64)
        mine = digits[labels == label].reshape(-1, 64)
        assert (windows[:, np.newaxis] == mine).all(-1).any()


def agree(found, expected):
    """Whether the means of two samples differ by less than five standard errors."""
    error = sum(it.var() / len(it) for it in (found, expected)) ** 0.5
    return (found.mean() - expected.mean()).abs() < 5 * error


def test_distractors_grow_in_number_with_the_canvas():
    def inked(size, **options):
        """Pixels of each canvas that are not empty."""
        images = DigitsTask(**options).batch(size, range(200)).images
        return (images > 0).sum((1, 2)).double()

    # A digit has as many pixels on every canvas, and distractors as many for each one around it.
    digit = inked(6, density=0)
    assert agree(inked(24, density=0), digit)
    small, middle, large = (
        (inked(size) - digit.mean()) / ((4 * size) ** 2 - 64) for size in (6, 12, 24)
    )
    assert agree(small, middle) and agree(middle, large)


def test_splits_share_no_digit_no_writer_and_no_photograph():
    from sklearn.datasets import load_digits

    every = load_digits()
    parts = [split_digits(split) for split in ("train", "validation")]
    assert np.array_equal(16 * np.concatenate([digits for digits, _ in parts]), every.images)
    assert np.array_equal(np.concatenate([labels for _, labels in parts]), every.target)
    # A writer starts with all ten digits, three times.
    assert parts[1][1][:30].tolist() == 3 * list(range(10))
    names = [name for split in PHOTOGRAPHS.values() for name in split]
    assert len(set(names)) == len(names)


def test_textures_have_variance_one_and_amplitudes_of_one_over_frequency():
    task = TextureTask(coarsest=32.0)
    images = task.batch(16, range(200)).images.double()
    squares = images.square().mean((1, 2))
    assert agree(squares, torch.ones(200))
    # The variance in the octave of frequencies from 1/16 to 1/8 is that from 1/8 to 1/4.
    side = images.shape[-1]
    power = torch.fft.fft2(images * torch.hann_window(side).outer(torch.hann_window(side)))
    frequency = torch.fft.fftfreq(side)
    radius = torch.hypot(frequency[:, None], frequency)
    power = power.abs().square()
    low, middle, high = (
        power[:, (radius >= edge) & (radius < 2 * edge)].sum(1) for edge in (1 / 16, 1 / 8, 1 / 4)
    )
    assert agree(low, middle) and agree(middle, high)


def test_textures_look_alike_at_all_sizes():
    """The mean square of the difference of neighbours, and that of pixels 16 apart."""
    task = TextureTask()
    for apart in (1, 16):
        small, large = (
            (it[:, :, apart:] - it[:, :, :-apart]).double().square().mean((1, 2))
            for it in (task.batch(size, range(64)).images for size in (6, 24))
        )
        assert agree(small, large)


def test_hidden_patches_are_those_of_the_image():
    batch = TextureTask().batch(3, [0])
    assert torch.equal(batch.targets[0, 5].view(8, 8), batch.images[0, 8:16, 16:24])


def test_photographs_are_grey_and_normalised_and_cut_at_random():
    assert all(abs(it.mean()) < 1e-4 and abs(it.std() - 1) < 1e-4 for it in photographs("train"))
    batch = PhotographTask(split="validation").batch(48, range(3))
    assert batch.images.shape == (3, 384, 384)
    with pytest.raises(ValueError, match=r"size must be at most 64, as the photographs for valid"):
        PhotographTask(split="validation").batch(65, [0])


def test_photographs_are_cut_out_whole_and_mirrored_half_of_the_time():
    def is_part(canvas, whole):
        rows, columns = np.nonzero(whole[:-15, :-15] == canvas[0, 0])
        starts = zip(rows.tolist(), columns.tolist(), strict=True)
        return any(np.array_equal(whole[i : i + 16, j : j + 16], canvas) for i, j in starts)

    wholes = photographs("train")
    canvases = PhotographTask().batch(2, range(24)).images.numpy()
    plain, mirrored = (
        [any(is_part(it[:, ::step], whole) for whole in wholes) for it in canvases]
        for step in (1, -1)
    )
    assert all(map(np.logical_or, plain, mirrored))
    assert 0 < sum(plain) < 24 and 0 < sum(mirrored) < 24
