"""Images: uint8 N×C×H×W, with their mirror images, shifts, RandAugment and pixel statistics.

All draws come from the given generator, and no step loops over images. Views are new tensors on the device of the
images: weak views are computed there, strong ones on the host, with the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import STANDARD, OwnView, Samples, StrongView

GREY = 127
"""Fill value where an operation leaves a pixel undefined."""
ENLARGED = 1.15
"""A crop is taken from the image at this many times its size."""


@dataclass(frozen=True, eq=False)
class Images(Samples):
    """Images, uint8 N×C×H×W; views may be floats in 0..255."""

    flips: bool = True
    """Whether a mirrored image keeps its class (not so for digits)."""
    mean: tuple[float, ...] = ()
    """Networks are fed (image / 255 − mean) / std, channel by channel; empty: 0 and 1, as in the paper."""
    std: tuple[float, ...] = ()

    @staticmethod
    def described(data: Tensor, about: Mapping[str, Any]) -> "Images":
        """Data as the images that ``about`` describes."""
        mean, std = (tuple(float(x) for x in about.get(name, ())) for name in ("mean", "std"))
        return Images(data, bool(about.get("flips", True)), mean, std)

    @staticmethod
    def fitting(images: Tensor, about: Mapping[str, Any]) -> "Images":
        """A user's images (or a single one) for the model that ``about`` describes; E204 if they do not fit it."""
        batch, shape = images[None] if images.ndim == 3 else images, tuple(about["shape"])
        if batch.dtype != torch.uint8 or tuple(batch.shape[1:]) != shape:
            message = f"are {batch.dtype} of shape {tuple(batch.shape)}, expected uint8 N×{shape}"
            raise FedfewError("E204", "images", message)
        return Images.described(batch, about)

    def inputs(self, device: torch.device) -> Tensor:
        """Normalised floats, channels last."""
        scale, shift = _normalization(self.mean or (0.0,), self.std or (1.0,), device)
        return (self.data.to(device).float() * scale + shift).contiguous(memory_format=torch.channels_last)

    def weak(self, rng: torch.Generator, shift: int = 2) -> Self:
        """A random mirror image (where that keeps the class) and a shift."""
        offsets = _offsets(len(self), shift, rng)
        return self.like(_moved(self.data, offsets, _coins(len(self), rng) if self.flips else None))

    def strong(self, rng: torch.Generator, how: StrongView | OwnView = STANDARD) -> Self:
        """Weak, then RandAugment, then a grey square; or the user's own function."""
        if isinstance(how, OwnView):
            return self.like(how(self.data, rng))
        from fedfew.data.samples.randaugment import POOL, rand_augment  # most methods have no strong view

        here = self.like(self.data.cpu())
        moved = here.data if how.shift is None else here.weak(rng, how.shift).data
        pool = POOL if how.identity else POOL[1:]
        changed = rand_augment(moved, rng, layers=how.layers, magnitude=how.magnitude, pool=pool)
        changed = changed if how.hole is None else cutout(changed, rng, how.hole)
        return self.like(changed.to(self.data.device))

    def views(self, count: int, rng: torch.Generator) -> list[Self]:
        """A shift, the mirror image (where mirroring changes the class, a second shift), then weak views."""
        family = []
        for number in range(count):
            if number == 0:
                family.append(self.like(shifted(self.data, rng)))
            elif number == 1 and self.flips:
                family.append(self.like(self.data.flip(3)))
            else:
                family.append(self.weak(rng))
        return family

    def crops(self, count: int, keys: Tensor, scaled: Callable[[Tensor, float], Tensor], size: int) -> Iterator[Tensor]:
        """Views of each image for a backbone, which ``scaled`` resizes (to a multiple of ``size``) and normalises.

        The first is the image as it is, the second its mirror image (where that keeps the class), the others are crops
        of the enlarged image at a random place, half of them mirrored. The places follow from an image's key (N×16
        bytes) and not from its position.
        """
        x = self.data.float() / 255
        yield scaled(x, 1.0)
        if count > 1:
            draws = np.stack([_draws(bytes(key.numpy()), count) for key in keys], 1)
            large = scaled(x, ENLARGED)
        for view in range(1, count):
            if view == 1 and self.flips:
                yield scaled(x.flip(3), 1.0)
            else:
                yield _window(large, torch.from_numpy(draws[view]), size, self.flips)

    def crop_settings(self, count: int) -> list[Any]:
        """All that ``crops`` depend on besides image and size."""
        return [count, self.flips, ENLARGED] if count > 1 else [1]

    @property
    def normalized(self) -> bool:
        """Whether networks are fed anything but pixels in [0, 1]."""
        return any(self.mean) or any(value != 1 for value in self.std)

    def noisy(self, deviation: float, rng: torch.Generator) -> Self:
        """Noise whose deviation is relative to the brightest value."""
        draws = torch.randn(self.data.shape, generator=rng).to(self.data.device)
        return self.like((self.data.float() + 255 * deviation * draws).clamp_(0, 255))

    def random(self, rng: torch.Generator) -> Self:
        """An image of random pixels."""
        return self.like(torch.randint(0, 256, (1, *self.data.shape[1:]), dtype=torch.uint8, generator=rng))

    def vectors(self) -> Tensor:
        message = "this method works on vectors, such as the features of a frozen backbone, not on images"
        raise FedfewError("E113", "method.name", message, 'Set model.name = "efficientnet-lite0", model.train = "head"')

    def about(self) -> dict[str, Any]:
        channels = self.data.shape[1]
        mean, std = self.mean or (0.0,) * channels, self.std or (1.0,) * channels
        shape = list(self.data.shape[1:])
        return {"kind": "images", "shape": shape, "flips": self.flips, "mean": list(mean), "std": list(std)}

    def fault(self) -> str:
        if self.data.dtype != torch.uint8 or self.data.dim() != 4:
            problem = f"images are {self.data.dtype} of {self.data.dim()} dimensions, not uint8 N×C×H×W"
            floats = "; multiply floats from 0 to 1 by 255, or use Vectors for what are no pixels"
            return problem + (floats if self.data.is_floating_point() else "")
        return ""

    def standardizer(self, *others: Self) -> Callable[[Self], Self]:
        mean, std = pixel_statistics([self.data, *(other.data for other in others)])
        return lambda images: replace(images, mean=mean, std=std)


@cache
def _normalization(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Factor and summand of each channel for pixels in 0..255."""
    deviation = torch.tensor(std).view(1, -1, 1, 1).to(device)
    middle = torch.tensor(mean).view(1, -1, 1, 1).to(device)
    return 1 / (255 * deviation), -middle / deviation


def pixel_statistics(parts: Sequence[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, exact: counted by pixel value, a few images at a time."""
    channels = parts[0].shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for block in (block for part in parts for block in part.split(4096)):
        for channel in range(channels):
            counts[channel] += np.bincount(block[:, channel].numpy().ravel(), minlength=256)
    shares = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1))
    # A channel with a single value has no spread; one grey level is used instead, so that nothing divides by zero.
    return tuple(mean.tolist()), tuple(np.maximum(std, 1 / 255).tolist())


def _draws(key: bytes, views: int) -> NDArray[np.float32]:
    """V×3 draws from [0, 1) that follow from an image's key: down, right, mirrored."""
    return np.random.default_rng(np.frombuffer(key, np.uint32)).random((views, 3), dtype=np.float32)


def _window(large: Tensor, draws: Tensor, size: int, flips: bool) -> Tensor:
    """A size×size window of each enlarged image, at the place its draws give, mirrored if the third is below ½."""
    count, channels, side, _ = large.shape
    down, right = ((draws[:, i] * (side - size + 1)).long() for i in (0, 1))
    rows, columns = down[:, None] + torch.arange(size), right[:, None] + torch.arange(size)
    if flips:
        columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
    index = (rows[:, :, None] * side + columns[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
    flat = large.reshape(count, channels, -1).gather(2, index.to(large.device))
    return flat.view(count, channels, size, size).contiguous(memory_format=torch.channels_last)


def shifted(images: Tensor, rng: torch.Generator, pixels: int = 2) -> Tensor:
    """Each image moved by a whole number of pixels in [−pixels, pixels] down and right; its edge is repeated."""
    return _moved(images, _offsets(len(images), pixels, rng), None)


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


def gather(images: Tensor, index: Tensor) -> Tensor:
    """Pixels by their flat index (N×H×W), the same in each channel: N×C×HW."""
    return images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, images.shape[1], -1))
