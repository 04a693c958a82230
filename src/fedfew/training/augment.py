"""Augmentation of whole batches of uint8 images N×C×H×W: weak (mirror and shift), the paper's views, and strong.

All draws come from the generator given, and no step loops over images. Everything returns new uint8 tensors, where the
images are: on an accelerator the weak views are made there, and strong ones on the host, whose bits are the same.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.training.randaugment import GREY, LEVELS, gather, rand_augment


def shift(images: Tensor, rng: torch.Generator, pixels: int = 2) -> Tensor:
    """Each image moved by a whole number of pixels in [−pixels, pixels] down and right; its edge is repeated."""
    return _moved(images, _offsets(len(images), pixels, rng), None)


def flip(images: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Images mirrored left to right: all of them without a generator, each with probability ½ with one."""
    if rng is None:
        return images.flip(3)
    return _moved(images, np.zeros((2, len(images), 1), np.int64), _coins(len(images), rng))


def weak(images: Tensor, rng: torch.Generator, flips: bool = True, pixels: int = 2) -> Tensor:
    """A random mirror (where that keeps the class: not for digits) and a shift."""
    offsets = _offsets(len(images), pixels, rng)
    return _moved(images, offsets, _coins(len(images), rng) if flips else None)


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
    moved = weak(images.cpu(), rng, flips)
    strengthened = cutout(rand_augment(moved, rng, layers=layers, magnitude=magnitude), rng, hole)
    return strengthened.to(images.device)


def cutout(images: Tensor, rng: torch.Generator, hole: float = 0.5) -> Tensor:
    """A grey square whose centre is drawn from all pixels, so it may reach beyond the edge (DeVries & Taylor, 2017)."""
    count, _, height, width = images.shape
    down, right = torch.rand((2, count, 1), generator=rng).numpy()
    square = _stretch(height, hole, down)[:, None, :, None] & _stretch(width, hole, right)[:, None, None, :]
    inside = np.negative(square.view(np.uint8))  # 255 inside, 0 outside: bits are combined faster than a mask is filled
    source = images.cpu().numpy()
    out = source ^ np.uint8(GREY)
    out &= inside
    out ^= source
    return torch.from_numpy(out).to(images.device)


def _stretch(length: int, share: float, draw: NDArray[np.float32]) -> NDArray[np.bool_]:
    """N×length: true on a stretch of ``share`` × length, whose centre the image's draw from [0, 1) places."""
    side = round(share * length)
    offset = np.arange(side // 2, side // 2 + length) - np.floor(draw * length)
    inside: NDArray[np.bool_] = (offset >= 0) & (offset < side)
    return inside


def _offsets(count: int, pixels: int, rng: torch.Generator) -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = torch.randint(-pixels, pixels + 1, (2, count, 1), generator=rng).numpy()
    return offsets


def _coins(count: int, rng: torch.Generator) -> NDArray[np.bool_]:
    coins: NDArray[np.bool_] = torch.randint(0, 2, (count, 1), generator=rng).bool().numpy()
    return coins


def _moved(images: Tensor, offsets: NDArray[np.int64], mirrored: NDArray[np.bool_] | None) -> Tensor:
    """Mirror where told, then move down and right: one gather, whose index names each target pixel's source."""
    height, width = images.shape[2:]
    down, right = offsets
    rows = (np.arange(height) - down).clip(0, height - 1) * width
    columns = (np.arange(width) - right).clip(0, width - 1)
    if mirrored is not None:
        columns = np.where(mirrored, width - 1 - columns, columns)
    down_to, right_to = (torch.from_numpy(part).to(images.device) for part in (rows, columns))
    return gather(images, down_to[:, :, None] + right_to[:, None, :]).view(images.shape)
