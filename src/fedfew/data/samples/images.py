"""Augmentation of whole batches of uint8 images N×C×H×W: weak (mirror and shift), the paper's views, and strong.

All draws come from the given generator, and no step loops over images. Everything returns new uint8 tensors on the
device of the images: weak views are computed there, strong ones on the host, with the same bits.

For features N×V×d (from a frozen backbone, for V views of each image) a view is one of the V, drawn for each image, as
N×1×d; a strong view also has a tenth of its features set to 0.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Doc
from fedfew.core.types import Augment, ClientSite
from fedfew.training.randaugment import GREY, LEVELS, gather, rand_augment

FORGOTTEN = 0.1
"""Share of the features that a strong view drops (dropout); the others are scaled up to keep the mean."""


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
    if images.ndim == 3:
        return _cached(images, torch.randint(0, images.shape[1], (len(images), 1), generator=rng))
    offsets = _offsets(len(images), pixels, rng)
    return _moved(images, offsets, _coins(len(images), rng) if flips else None)


def views(images: Tensor, count: int, rng: torch.Generator, flips: bool = True) -> Tensor:
    """The paper's family π_1 … π_A as A×N×C×H×W: a shift, the mirror image, then weak views.

    Where mirroring changes the class (``flips`` false), view 2 is a second shift. For features N×V×d: A views of each
    image, all different as long as there are enough, as A×N×1×d.
    """
    if images.ndim == 3:
        orders = [torch.rand(images.shape[:2], generator=rng).argsort(1) for _ in range(-(-count // images.shape[1]))]
        return torch.stack([_cached(images, place[:, None]) for place in torch.cat(orders, 1)[:, :count].unbind(1)])
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
    pixels: int = 2,
) -> Tensor:
    """Weak, then RandAugment, then a grey square of side ``hole`` × image (16 of 32 pixels; 0 leaves it out)."""
    if images.ndim == 3:
        drawn = weak(images, rng)
        kept = torch.rand(drawn.shape, generator=rng) >= FORGOTTEN
        return drawn * kept.to(drawn.device) / (1 - FORGOTTEN)
    moved = weak(images.cpu(), rng, flips, pixels)
    strengthened = cutout(rand_augment(moved, rng, layers=layers, magnitude=magnitude), rng, hole)
    return strengthened.to(images.device)


def strong_view(site: ClientSite, images: Tensor, rng: torch.Generator, hole: float = 0.5, pixels: int = 2) -> Tensor:
    """A client's strong view of its images: the user's own augmentation if there is one."""
    if site.own_view is None:
        return strong(images, rng, flips=site.flips, hole=hole, pixels=pixels)
    return own_view(site.own_view, images, rng, "client.augment")


def own_view(make: Augment, images: Tensor, rng: torch.Generator, key: str) -> Tensor:
    """Apply the user's own augmentation, for features to a drawn view; E115 if it returns another shape."""
    given = weak(images, rng) if images.ndim == 3 else images
    made = make(given, rng)
    if not isinstance(made, Tensor) or made.shape != given.shape:
        found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise FedfewError("E115", key, f"{getattr(make, '__name__', make)} gave {found} for {tuple(given.shape)}")
    return made


@dataclass(frozen=True)
class ClientViews:
    """The strong view of a client's image, for methods that train on one."""

    augment: Annotated[
        str, Doc("the strong view: standard (RandAugment and a grey square), or package.module:function of your own")
    ] = "standard"


def _cached(features: Tensor, views: Tensor) -> Tensor:
    """The view of each image that ``views`` (N×1) names, N×1×d."""
    places = views.to(features.device)[:, :, None].expand(-1, -1, features.shape[2])
    return features.gather(1, places)


def noisy(images: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Images plus Gaussian noise, as floats; ``deviation`` is relative to the brightest pixel or the features' size."""
    draws = torch.randn(images.shape, generator=rng).to(images.device)
    if images.ndim == 3:
        return images.float() + deviation * images.float().square().mean().sqrt() * draws
    return (images.float() + 255 * deviation * draws).clamp_(0, 255)


def noise_image(images: Tensor, rng: torch.Generator) -> Tensor:
    """One image of random pixels, or a random vector as long as the first image's features."""
    if images.ndim == 3:
        draws = torch.randn(1, 1, images.shape[2], generator=rng)
        return draws * float(images[0, 0].float().norm() / draws.norm())
    return torch.randint(0, 256, (1, *images.shape[1:]), dtype=torch.uint8, generator=rng)


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
    """Mirror where asked, then move down and right: one gather, whose index names each target pixel's source."""
    height, width = images.shape[2:]
    down, right = offsets
    rows = (np.arange(height) - down).clip(0, height - 1) * width
    columns = (np.arange(width) - right).clip(0, width - 1)
    if mirrored is not None:
        columns = np.where(mirrored, width - 1 - columns, columns)
    down_to, right_to = (torch.from_numpy(part).to(images.device) for part in (rows, columns))
    return gather(images, down_to[:, :, None] + right_to[:, None, :]).view(images.shape)
