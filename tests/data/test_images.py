"""Single image files: the right pixels from every mode and format, and a reason for everything that is refused."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.data.image_zoo import READ, REMARKED, SIDE, SKIPPED, good, grey16, mutants, picture, saved, turned, zoo

from fedfew.data.dataset import Unreadable
from fedfew.data.images.decode import FILE_CAP, decode, probe, read_file
from fedfew.data.images.grey import SLAB, stretched, to_eight_bits

Array = NDArray[np.float64]

# EXIF 2.3: what the stored rows and columns are in the picture as it is to be seen
SHOWN: dict[int, Callable[[Array], Array]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.T[::-1, ::-1],
    8: lambda a: np.rot90(a, 1),
}


def outcome(content: bytes) -> str:
    try:
        pixels, remark = decode(content, 16, 3)
    except Unreadable as fault:
        assert str(fault)
        return SKIPPED
    assert pixels.shape == (3, 16, 16)
    assert pixels.dtype == np.uint8
    return REMARKED if remark else READ


def test_the_zoo_is_read_or_refused_as_it_should() -> None:
    animals = zoo()
    assert len(animals) >= 60
    assert len({name for name, _, _ in animals}) == len(animals)
    assert {name: outcome(content) for name, content, _ in animals} == {name: fate for name, _, fate in animals}


def test_an_image_of_the_right_size_keeps_its_pixels() -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    for kind in ("PNG", "BMP", "TIFF"):
        pixels, _ = decode(saved(Image.fromarray(values), kind), 20, 3)
        np.testing.assert_array_equal(pixels, values.transpose(2, 0, 1))
    grey, _ = decode(saved(Image.fromarray(values[..., 0]), "PNG"), 20, 1)
    np.testing.assert_array_equal(grey[0], values[..., 0])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_note_is_followed(kind: str, orientation: int) -> None:
    upright = np.asarray(picture("L"), float)
    expected = SHOWN[orientation](upright)
    pixels, _ = decode(turned(orientation, kind), SIDE, 1)
    assert np.abs(pixels[0] - expected).mean() < 12
    if orientation > 1:
        assert np.abs(pixels[0] - upright).mean() > 12


def test_see_through_parts_are_white() -> None:
    clear = Image.new("RGBA", (16, 16), (10, 20, 30, 0))
    assert (decode(saved(clear, "PNG"), 16, 3)[0] == 255).all()
    half = Image.new("RGBA", (40, 40), (0, 0, 0, 128))
    assert abs(int(decode(saved(half, "PNG"), 16, 1)[0].mean()) - 127) <= 1
    palette = Image.new("P", (16, 16), 3)
    palette.putpalette([0, 0, 0, 10, 10, 10, 20, 20, 20, 30, 30, 30])
    assert (decode(saved(palette, "PNG", transparency=3), 16, 3)[0] == 255).all()
    assert (decode(saved(palette, "PNG"), 16, 3)[0] == 30).all()


def test_cmyk_becomes_the_color_that_was_meant() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 30)).convert("CMYK")
    for kind in ("TIFF", "JPEG"):
        pixels, _ = decode(saved(red, kind), 16, 3)
        assert np.abs(pixels.mean((1, 2)) - [200, 30, 30]).max() < 6


@pytest.mark.parametrize(("top", "bits"), [(255, 8), (1000, 10), (4095, 12), (9000, 14), (65_535, 16)])
def test_sixteen_bit_files_keep_their_contrast(top: int, bits: int) -> None:
    image = grey16(top)
    expected = np.rint(np.asarray(image, float) * 255 / (2**bits - 1))
    for kind in ("PNG", "TIFF"):
        pixels, _ = decode(saved(image, kind), SIDE, 1)
        np.testing.assert_array_equal(pixels[0], expected)


def test_floats_and_negative_numbers_are_stretched() -> None:
    unit = np.array([[0.0, 0.5, 1.0]], np.float32)
    np.testing.assert_array_equal(to_eight_bits(unit), [[0, 128, 255]])
    np.testing.assert_array_equal(to_eight_bits(np.array([[-1000, 0, 1000]])), [[0, 128, 255]])
    np.testing.assert_array_equal(to_eight_bits(np.full((2, 2), -3.0)), np.zeros((2, 2)))


def test_slabs_make_no_difference() -> None:
    rows = SLAB // 500
    values = np.random.default_rng(0).integers(0, 4096, (2 * rows + 7, 500)).astype(np.uint16)
    expected = np.rint((values.astype(np.float32) - 40) * np.float32(255 / 960)).clip(0, 255)
    np.testing.assert_array_equal(stretched(values, 40, 1000), expected)
    np.testing.assert_array_equal(stretched(values[:1, :1].astype(float) * 0 + 70, 40, 1000), [[8]])


def test_the_middle_is_cut_out_and_brought_to_size() -> None:
    wide = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 90), dtype=np.uint8))
    expected = np.asarray(wide.resize((30, 10), Image.Resampling.BICUBIC))[:, 10:20].astype(int)
    pixels, _ = decode(saved(wide, "PNG"), 10, 1)
    assert np.abs(pixels[0] - expected).max() <= 1
    tall, _ = decode(saved(wide.transpose(Image.Transpose.TRANSPOSE), "PNG"), 10, 1)
    assert np.abs(tall[0] - expected.T).max() <= 1


def test_a_large_jpeg_decoded_small_looks_the_same() -> None:
    image = picture("RGB", 1200, 800)
    pixels, _ = decode(saved(image, "JPEG", quality=95), 32, 3)
    reference, _ = decode(saved(image, "PNG"), 32, 3)
    assert np.abs(pixels.astype(int) - reference).mean() < 3


def test_probe_tells_size_and_color() -> None:
    assert probe(saved(picture("RGB", 40, 30), "JPEG")) == (40, 30, True)
    assert probe(saved(picture("L", 8, 9), "PNG")) == (8, 9, False)
    assert probe(saved(grey16(4000), "TIFF")) == (SIDE, SIDE, False)


def test_only_regular_files_within_the_cap_are_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(Unreadable, match="is not a regular file"):
        read_file(pipe)  # opening it would wait for ever
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(FILE_CAP + 1)
    with pytest.raises(Unreadable, match="the limit is 64"):
        read_file(large)
    with pytest.raises(Unreadable, match="cannot be opened"):
        read_file(tmp_path / "gone.png")


def test_two_thousand_damaged_images_are_read_or_refused() -> None:
    fates = [outcome(content) for content in mutants(2_000)]
    assert fates.count(SKIPPED) > 400
    assert len(fates) - fates.count(SKIPPED) > 200


def test_good_images_of_the_zoo_survive_every_size() -> None:
    for name, content, _ in good():
        for size, channels in ((8, 1), (65, 3)):
            assert decode(content, size, channels)[0].shape == (channels, size, size), name
