"""Images as another scanner, camera or protocol would show them: gamma, contrast, blur, noise and color.

``CHANGES`` are 21 of them, mild and strong. They show in which directions scanners move a backbone's features.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

FINE = 96
"""Noise is given for images of so many pixels a side, in others it is side / 96 of that: the same power at every
frequency once a backbone has scaled them."""
LIGHTNESS = (0.299, 0.587, 0.114)
Change = Callable[[Tensor], Tensor]


def scanned(images: Tensor, change: Change) -> Tensor:
    """uint8 images N×C×H×W after a change of floats in 0..255."""
    return change(images.float()).round().clamp(0, 255).to(torch.uint8)


def gamma(x: Tensor, power: float) -> Tensor:
    return 255 * (x / 255) ** power


def contrast(x: Tensor, factor: float) -> Tensor:
    return (x - 127.5) * factor + 127.5


def blur(x: Tensor, deviation: float) -> Tensor:
    """With a Gaussian, whose deviation is in sides of the image."""
    reach = max(int(3 * deviation * x.shape[3] + 0.5), 1)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / (deviation * x.shape[3])) ** 2)
    line = (weights / weights.sum()).view(1, 1, 1, -1).repeat(x.shape[1], 1, 1, 1)
    x = conv2d(pad(x, (reach, reach, 0, 0), "replicate"), line, groups=x.shape[1])
    return conv2d(pad(x, (0, 0, reach, reach), "replicate"), line.transpose(2, 3), groups=x.shape[1])


def noise(x: Tensor, deviation: float, seed: int = 0) -> Tensor:
    draws = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return x + deviation * x.shape[3] / FINE * draws


def cast(x: Tensor, gains: tuple[float, float, float]) -> Tensor:
    """Channels brighter or darker by these shares; grey images by the first."""
    return x * (1 + torch.tensor(gains[: x.shape[1]]).view(1, -1, 1, 1))


def paler(x: Tensor, share: float) -> Tensor:
    """Part of the way to grey; grey images become lighter, by at most 40 levels."""
    if x.shape[1] == 1:
        return x + 40 * share
    grey = (x * torch.tensor(LIGHTNESS).view(1, 3, 1, 1)).sum(1, keepdim=True)
    return x + share * (grey - x)


CHANGES: tuple[Change, ...] = (
    *(partial(gamma, power=power) for power in (0.55, 0.75, 1.35, 1.9)),
    *(partial(contrast, factor=factor) for factor in (0.5, 0.7, 1.35, 1.7)),
    *(partial(blur, deviation=deviation) for deviation in (0.009, 0.014, 0.021)),
    *(partial(noise, deviation=deviation) for deviation in (8.0, 16.0, 25.0)),
    *(partial(cast, gains=gains) for gains in ((0.35, 0.0, -0.35), (-0.35, 0.0, 0.35), (-0.3, 0.3, -0.3))),
    *(partial(cast, gains=gains) for gains in ((0.2, -0.2, 0.2), (-0.15, -0.15, 0.15))),
    *(partial(paler, share=share) for share in (0.5, 1.0)),
)
