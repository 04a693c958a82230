"""Augmentation of whole batches of uint8 images N×C×H×W: weak (mirror and shift), the paper's views, and strong.

All draws come from the generator given, and no step loops over images. Everything returns new uint8 tensors.
"""

import torch
from torch import Tensor

from fedfew.algorithms.randaugment import GREY, LEVELS, rand_augment


def shift(images: Tensor, rng: torch.Generator, pixels: int = 2) -> Tensor:
    """Each image moved by a whole number of pixels in [−pixels, pixels] down and right; its edge is repeated."""
    down, right = torch.randint(-pixels, pixels + 1, (2, len(images)), generator=rng)
    return _moved(images, down, right, None)


def flip(images: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Images mirrored left to right: all of them without a generator, each with probability ½ with one."""
    if rng is None:
        return images.flip(3)
    still = torch.zeros(len(images), dtype=torch.int64)
    return _moved(images, still, still, _coins(len(images), rng))


def weak(images: Tensor, rng: torch.Generator, flips: bool = True, pixels: int = 2) -> Tensor:
    """A random mirror (where that keeps the class: not for digits) and a shift."""
    down, right = torch.randint(-pixels, pixels + 1, (2, len(images)), generator=rng)
    return _moved(images, down, right, _coins(len(images), rng) if flips else None)


def views(images: Tensor, count: int, rng: torch.Generator, flips: bool = True) -> Tensor:
    """The paper's family π_1 … π_A as A×N×C×H×W: a shift, the mirror image, then weak views.

    Where a mirrored image loses its class (``flips`` false), view 2 is a second shift.
    """
    family = torch.empty((count, *images.shape), dtype=images.dtype, device=images.device)
    for number in range(count):
        if number == 0:
            family[number] = shift(images, rng)
        elif number == 1 and flips:
            family[number] = flip(images)
        else:
            family[number] = weak(images, rng, flips)
    return family


def strong(
    images: Tensor,
    rng: torch.Generator,
    *,
    layers: int = 2,
    magnitude: int | tuple[int, int] = LEVELS,
    flips: bool = True,
    hole: float = 0.5,
) -> Tensor:
    """Weak, then RandAugment, then a grey square of side ``hole`` × image (16 of 32 pixels; 0 leaves it out)."""
    moved = weak(images, rng, flips)
    return cutout(rand_augment(moved, rng, layers=layers, magnitude=magnitude), rng, hole)


def cutout(images: Tensor, rng: torch.Generator, hole: float = 0.5) -> Tensor:
    """A grey square whose centre is drawn from all pixels, so it may reach beyond the edge (DeVries & Taylor, 2017)."""
    count, _, height, width = images.shape
    rows = _band(height, hole, count, rng)[:, :, None]
    columns = _band(width, hole, count, rng)[:, None, :]
    # 255 inside the square, 0 outside: bytes are combined bit by bit, which is faster than a masked fill.
    square = (rows & columns)[:, None].to(images.device)
    return images ^ ((images ^ GREY) & square)


def _band(length: int, share: float, count: int, rng: torch.Generator) -> Tensor:
    """N×length bytes: 255 on a stretch of ``share`` × length around a random place."""
    side = round(share * length)
    start = torch.randint(0, length, (count, 1), generator=rng) - side // 2
    place = torch.arange(length)
    return ((place >= start) & (place < start + side)).to(torch.uint8) * 255


def _coins(count: int, rng: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=rng).bool()


def _moved(images: Tensor, down: Tensor, right: Tensor, mirrored: Tensor | None) -> Tensor:
    """Mirror where told, then move: one gather, whose index says which source pixel each target pixel shows."""
    count, channels, height, width = images.shape
    rows = (torch.arange(height) - down[:, None]).clamp_(0, height - 1)
    columns = (torch.arange(width) - right[:, None]).clamp_(0, width - 1)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns)
    source = ((rows * width)[:, :, None] + columns[:, None, :]).to(images.device)
    index = source.view(count, 1, height * width).expand(count, channels, height * width)
    return images.reshape(count, channels, height * width).gather(2, index).view(images.shape)
