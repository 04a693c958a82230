import math

import pytest
import torch
from benchmarks.scanners import Scanner
from torch import Tensor

from fedfew.data.images.looks import different, looks


def pictures(count: int, seed: int) -> Tensor:
    """Color images with texture, whose brightness varies."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=rng)
    smooth = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic", align_corners=False)
    fine = torch.rand(count, 1, 32, 32, generator=rng)
    light = 60 + 40 * torch.rand(count, 1, 1, 1, generator=rng)
    return (light + 90 * smooth + 12 * fine).clamp(0, 255).to(torch.uint8)


def test_looks_of_a_plane_a_chessboard_and_color() -> None:
    plane = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    board = (100 * ((torch.arange(8)[:, None] + torch.arange(8)) % 2)).to(torch.uint8).expand(1, 3, 8, 8)
    red = plane.clone()
    red[:, 1:] = 0
    brightness, contrast, sharp, grain, color = looks(torch.cat([plane, board, red])).T
    assert brightness.tolist() == pytest.approx([51, 50, 17])
    # a board of 32 pixels at 0 and 32 at 100: squares of 50² sum up to 64 · 2500, over 63
    assert contrast.tolist() == pytest.approx([0, math.sqrt(64 * 2500 / 63), 0])
    assert float(grain[1]) == pytest.approx(math.log(401))  # four neighbours differ by 100
    assert float(sharp[1]) == pytest.approx(math.log(400 / math.sqrt(64 * 2500 / 63) + 0.01))
    assert color.tolist() == pytest.approx([0, 0, 51])


@pytest.mark.parametrize(
    ("kind", "high", "words"),
    [
        ("gamma", True, "darker"),
        ("contrast", False, "of lower contrast"),
        ("blur", True, "blurred"),
        ("noise", True, "noisier"),
        ("cast", True, "less colorful"),
    ],
)
def test_a_site_with_another_scanner_looks_different_and_one_without_does_not(
    kind: str, high: bool, words: str
) -> None:
    scanner = Scanner(kind, "strong", high, 1.0, (1.0, 1.0, -1.0), 0)
    sites = {"a": looks(pictures(100, 1)), "b": looks(scanner(pictures(100, 2)))}
    result = different(looks(pictures(40, 0)), torch.arange(40) % 4, sites)
    assert [difference.site for difference in result] == ["b"]
    assert words in result[0].words


def test_a_site_with_a_single_class_does_not_look_different() -> None:
    by_class = torch.tensor([0.0, 30.0])  # brightness: classes differ by 30, images of a class by ± 10
    rng = torch.Generator().manual_seed(0)
    classes = torch.arange(40) % 2
    server = (by_class[classes] + 10 * torch.randn(40, generator=rng)).double()[:, None].repeat(1, 5)
    site = (by_class[1] + 10 * torch.randn(100, generator=rng)).double()[:, None].repeat(1, 5)
    assert different(server, classes, {"one class": site}) == []
    # τ = 30/√2 = 21: 1.5 τ + 3 · 10 √(1/40 + 1/100) = 37 from the middle, 15
    assert [d.site for d in different(server, classes, {"another": site + 30})] == ["another"]
