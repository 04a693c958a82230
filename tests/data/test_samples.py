"""Augmentation: each operation against a plain reference, the paper's views, and what every one must keep."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fedfew.core.samples import StrongView
from fedfew.data.samples import Images, Vectors
from fedfew.data.samples.images import GREY, cutout, shifted
from fedfew.data.samples.randaugment import POOL, operate, rand_augment
from fedfew.data.samples.vectors import DROPPED


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(count: int = 6, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Smooth images with some noise and a narrow range of values, so that no operation is without effect."""
    down, right = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 2, width), indexing="ij")
    phase = torch.rand((count, channels, 1, 1), generator=rng(7)) * 6
    waves = (down + phase).sin() * (right * 2 - phase).cos()
    noise = torch.rand((count, channels, height, width), generator=rng(8))
    return (120 + 80 * waves + 20 * noise).to(torch.uint8)


def one(name: str, images: Tensor, amount: float) -> Tensor:
    shape = (1, len(images))
    return operate(images, np.full(shape, POOL.index(name)), np.full(shape, amount))


def by_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    results = []
    for image in images:
        array = image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()
        changed = torch.from_numpy(np.array(change(Image.fromarray(array))))
        results.append(changed[None] if len(image) == 1 else changed.permute(2, 0, 1))
    return torch.stack(results)


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a.int() - b.int()).abs()


@pytest.mark.parametrize("flips", [True, False])
def test_weak_is_one_of_the_shifts_of_the_image_or_of_its_mirror_image(flips: bool) -> None:
    images = photos(60, 3, 12, 10)
    out = Images(images, flips=flips).weak(rng()).data
    framed = torch.nn.functional.pad(images.float(), (2, 2, 2, 2), mode="replicate").to(torch.uint8)
    matching = {
        (mirrored, down, right): (source[:, :, 2 - down : 14 - down, 2 - right : 12 - right] == out).all((1, 2, 3))
        for mirrored, source in ((False, framed), (True, framed.flip(3)))
        for down in range(-2, 3)
        for right in range(-2, 3)
    }
    assert torch.stack(list(matching.values())).sum(0).tolist() == [1] * 60
    seen = {key for key, images_of_that_kind in matching.items() if bool(images_of_that_kind.any())}
    assert {mirrored for mirrored, _, _ in seen} == ({False, True} if flips else {False})
    assert {down for _, down, _ in seen} == {right for _, _, right in seen} == {-2, -1, 0, 1, 2}


def test_shift_goes_as_far_as_told_and_no_further() -> None:
    images = photos(8)
    assert torch.equal(shifted(images, rng(), pixels=0), images)
    assert not torch.equal(shifted(images, rng()), images)
    assert torch.equal(shifted(images, rng(3)), Images(images, flips=False).weak(rng(3)).data)


def test_views_are_a_shift_then_the_mirror_image_then_weak_ones_and_of_digits_all_shifts() -> None:
    images, draws = photos(5), rng(2)
    family = [view.data for view in Images(images).views(4, rng(2))]
    expected = [shifted(images, draws), images.flip(3), *(Images(images).weak(draws).data for _ in range(2))]
    assert all(map(torch.equal, family, expected)) and len(family) == 4
    digits, draws = photos(5, 1, 28, 28), rng(2)
    assert all(torch.equal(v.data, shifted(digits, draws)) for v in Images(digits, flips=False).views(3, rng(2)))


PILLOW: list[tuple[str, float, Callable[[Image.Image], Image.Image], int]] = [
    ("identity", 0.7, lambda image: image, 0),
    ("autocontrast", 0.7, ImageOps.autocontrast, 1),
    ("equalize", 0.7, ImageOps.equalize, 0),
    ("solarize", -0.5, lambda image: ImageOps.solarize(image, 128), 0),
    ("solarize", 1.0, ImageOps.invert, 0),
    ("posterize", 0.5, lambda image: ImageOps.posterize(image, 6), 0),
    ("posterize", -1.0, lambda image: ImageOps.posterize(image, 4), 0),
    ("brightness", 0.5, lambda image: ImageEnhance.Brightness(image).enhance(1.45), 1),
    ("brightness", -1.0, lambda image: ImageEnhance.Brightness(image).enhance(0.1), 1),
    ("contrast", 1.0, lambda image: ImageEnhance.Contrast(image).enhance(1.9), 1),
    ("contrast", -0.5, lambda image: ImageEnhance.Contrast(image).enhance(0.55), 1),
    ("color", 1.0, lambda image: ImageEnhance.Color(image).enhance(1.9), 1),
    ("color", -0.5, lambda image: ImageEnhance.Color(image).enhance(0.55), 1),
    ("sharpness", 1.0, lambda image: ImageEnhance.Sharpness(image).enhance(1.9), 1),
    ("sharpness", -1.0, lambda image: ImageEnhance.Sharpness(image).enhance(0.1), 1),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("name", "amount", "change", "tolerance"), PILLOW)
def test_values_agree_with_pillow(
    name: str, amount: float, change: Callable[[Image.Image], Image.Image], tolerance: int, channels: int
) -> None:
    images = photos(6, channels, 24, 30)
    out = one(name, images, amount)
    assert int(distance(out, by_pillow(images, change)).max()) <= tolerance
    assert torch.equal(out, images) == (name == "identity" or (name == "color" and channels == 1))
    flat = torch.full((2, channels, 8, 8), 77, dtype=torch.uint8)
    assert name not in ("autocontrast", "equalize") or torch.equal(one(name, flat, 1.0), flat)


def affine(a: float, b: float, c: float, d: float, e: float, f: float) -> Callable[[Image.Image], Image.Image]:
    """Pillow's affine map with coordinates counted from the centre, as ours are."""

    def change(image: Image.Image) -> Image.Image:
        x, y = image.width / 2, image.height / 2
        matrix = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        fill = GREY if image.mode == "L" else (GREY,) * 3
        return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)

    return change


@pytest.mark.parametrize(
    ("name", "amount", "change"),
    [
        ("rotate", 1.0, lambda image: image.rotate(30, fillcolor=GREY if image.mode == "L" else (GREY,) * 3)),
        ("rotate", -0.5, lambda image: image.rotate(-15, fillcolor=GREY if image.mode == "L" else (GREY,) * 3)),
        ("shear_x", 0.9, affine(1, 0.27, 0, 0, 1, 0)),
        ("shear_y", -0.7, affine(1, 0, 0, -0.21, 1, 0)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_places_agree_with_pillow(
    name: str, amount: float, change: Callable[[Image.Image], Image.Image], channels: int
) -> None:
    images = photos(4, channels, 32, 28)
    wrong = distance(one(name, images, amount), by_pillow(images, change)) > 0
    assert wrong.float().mean().item() < 0.02  # a centre that falls on the border of two pixels may go either way


def test_translations_are_slices_with_grey_beside_them() -> None:
    images = photos(3, 3, 20, 30)
    right = one("translate_x", images, -1 / 3)  # 0.3 · 30 / 3 = 3 columns
    assert torch.equal(right[..., 3:], images[..., :-3])
    assert bool((right[..., :3] == GREY).all())
    up = one("translate_y", images, 1.0)  # 0.3 · 20 = 6 rows
    assert torch.equal(up[:, :, :-6], images[:, :, 6:])
    assert bool((up[:, :, -6:] == GREY).all())


def test_each_image_gets_its_own_operation_in_each_layer() -> None:
    images = photos(2 * len(POOL))
    first = np.arange(len(images)) % len(POOL)
    ops = np.stack([first[::-1], first])
    amounts = np.linspace(-1, 1, ops.size).reshape(ops.shape)
    out = operate(images, ops, amounts)
    for i, image in enumerate(images):
        step = one(POOL[ops[0, i]], image[None], amounts[0, i])
        assert torch.equal(out[i], one(POOL[ops[1, i]], step, amounts[1, i])[0])


def test_a_pair_of_magnitudes_lets_each_image_draw_its_own_ceiling() -> None:
    images = torch.full((4000, 1, 8, 8), 100, dtype=torch.uint8)
    out = rand_augment(images, rng(), layers=1, magnitude=(2, 5), pool=["brightness"])[:, 0, 0, 0]
    level = distance(out, images[:, 0, 0, 0]).float().div(10).round().long()
    shares = torch.bincount(level, minlength=6) / len(images)
    # M is 2, 3, 4 or 5; level l has probability mean over M of 1[l < M]/M.
    expected = [sum(1 / m for m in (2, 3, 4, 5) if level < m) / 4 for level in range(6)]
    assert shares.tolist() == pytest.approx(expected, abs=0.03)
    assert shares[5] == 0


def test_cutout_puts_a_grey_square_of_half_the_side() -> None:
    images = torch.zeros((500, 3, 32, 24), dtype=torch.uint8)
    out = cutout(images, rng())
    assert set(out.unique().tolist()) == {0, GREY}
    assert torch.equal(out[:, 0], out[:, 2])
    grey = out[:, 0] == GREY
    heights, widths = grey.any(2).sum(1), grey.any(1).sum(1)
    assert torch.equal(grey.sum((1, 2)), heights * widths)
    assert (int(heights.max()), int(widths.max())) == (16, 12)
    assert (int(heights.min()), int(widths.min())) == (8, 6)  # a centre on the edge leaves half of it, or one more
    assert torch.equal(cutout(photos(), rng(), 0.0), photos())


def test_strong_is_weak_then_randaugment_then_cutout() -> None:
    images, draws = photos(), rng(4)
    expected = cutout(
        rand_augment(Images(images, flips=False).weak(draws).data, draws, layers=3, magnitude=4), draws, 0.25
    )
    assert torch.equal(
        Images(images, flips=False).strong(rng(4), StrongView(layers=3, magnitude=4, hole=0.25)).data, expected
    )


EVERY: list[Callable[[Tensor, torch.Generator], Tensor]] = [
    shifted,
    lambda images, draws: Images(images).weak(draws).data,
    lambda images, draws: Images(images).strong(draws).data,
    cutout,
    rand_augment,
    lambda images, draws: Images(images).views(2, draws)[0].data,
    lambda images, draws: rand_augment(images, draws, layers=6, magnitude=(2, 5), pool=POOL[1:]),
]


@pytest.mark.parametrize("change", EVERY)
@pytest.mark.parametrize("shape", [(0, 3, 32, 32), (1, 1, 28, 28), (1, 3, 8, 8), (70, 3, 32, 32), (70, 1, 9, 14)])
def test_shape_type_repeatability_and_no_side_effects(
    change: Callable[[Tensor, torch.Generator], Tensor], shape: tuple[int, int, int, int]
) -> None:
    images = photos(*shape)
    before, state = images.clone(), torch.random.get_rng_state()
    numpy_state = np.random.get_state()[1].tolist()  # type: ignore[index]
    out = change(images, rng(1))
    assert out.shape == images.shape
    assert out.dtype == torch.uint8
    assert torch.equal(out, change(images, rng(1)))
    assert torch.equal(out, change(images.to(memory_format=torch.channels_last), rng(1)))
    assert len(images) < 70 or not torch.equal(out, change(images, rng(2)))
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == numpy_state  # type: ignore[index]


# features N×V×d


def cached(count: int = 200, kept: int = 3, width: int = 40) -> Tensor:
    return torch.randn(count, kept, width, generator=rng(5)).half()


def which(drawn: Tensor, features: Tensor) -> list[int]:
    """The number of the view that each row is."""
    return [int((features[i] == row).all(1).nonzero()[0, 0]) for i, row in enumerate(drawn[:, 0])]


def test_a_weak_view_of_features_is_one_of_the_cached() -> None:
    features = cached()
    drawn = Vectors(features).weak(rng()).data
    assert drawn.shape == (200, 1, 40) and drawn.dtype == torch.float16
    assert set(which(drawn, features)) == {0, 1, 2}
    assert torch.equal(Vectors(features).weak(rng()).data, drawn) and not torch.equal(
        Vectors(features).weak(rng(1)).data, drawn
    )
    assert torch.equal(Vectors(drawn).weak(rng()).data, drawn), "a view of a view is the view"


def test_a_strong_view_of_features_has_lost_a_tenth() -> None:
    features = cached(400)
    drawn = Vectors(features).strong(rng(2)).data
    lost = drawn == 0
    assert drawn.shape == (400, 1, 40) and abs(float(lost.float().mean()) - DROPPED) < 0.02
    source = Vectors(features).weak(rng(2)).data
    torch.testing.assert_close(drawn[~lost], source[~lost] / (1 - DROPPED), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_views_of_features_differ_as_long_as_there_are_any(count: int) -> None:
    features = cached(50)
    family = Vectors(features).views(count, rng())
    assert [view.data.shape for view in family] == [(50, 1, 40)] * count
    numbers = torch.tensor([which(view.data, features) for view in family])
    assert all(len(set(column[:3].tolist())) == min(count, 3) for column in numbers.T)


def test_noise_fits_what_it_is_added_to() -> None:
    features, images = cached().float(), photos()
    spread = (Vectors(features).noisy(0.5, rng()).data - features).std() / features.square().mean().sqrt()
    assert float(spread) == pytest.approx(0.5, rel=0.05)
    blurred = Images(images).noisy(0.1, rng()).data
    assert float(blurred.min()) >= 0 and float(blurred.max()) <= 255
    assert float((blurred - images).std()) == pytest.approx(25.5, rel=0.1)
    assert Images(images).random(rng()).data.shape == (1, 3, 32, 32)
    noise = Vectors(features).random(rng()).data
    assert noise.shape == (1, 1, 40) and float(noise.norm()) == pytest.approx(float(features[0, 0].norm()))
