"""Scanners: changes of images as another device, protocol or light would make them; each site draws its own.

| kind | mild | strong | |
|---|---|---|---|
| gamma | 0.75 or 1.35 | 0.55 or 1.9 | 255 (x / 255)^γ |
| contrast | 0.7 or 1.35 | 0.5 or 1.7 | about 127.5, then clipped |
| blur | 0.009 or 0.014 | 0.014 or 0.021 | deviation of a Gaussian, in sides of the image |
| noise | 8 or 12 | 16 or 25 | deviation, pixel by pixel, of images of 96×96 |
| cast | gains ± 15 % or half grey | gains ± 35 % or grey | grey images: 20 or 40 levels darker or lighter |

Each site has one of the ten, in an order drawn from the seed (all ten before any comes twice); its number is multiplied
by a draw from 0.9–1.1. ``scanners(10, "strong", seed)`` are the ten of a seed; ``None`` stands for no change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d, pad

KINDS: dict[str, dict[str, tuple[float, float]]] = {
    "gamma": {"mild": (0.75, 1.35), "strong": (0.55, 1.9)},
    "contrast": {"mild": (0.7, 1.35), "strong": (0.5, 1.7)},
    "blur": {"mild": (0.009, 0.014), "strong": (0.014, 0.021)},
    "noise": {"mild": (8.0, 12.0), "strong": (16.0, 25.0)},
    "cast": {"mild": (0.15, 0.5), "strong": (0.35, 1.0)},
}
LEVELS = {"mild": 20.0, "strong": 40.0}
LIGHTNESS = (0.299, 0.587, 0.114)
FINE = 96
"""Noise is given for images of so many pixels a side, in others it is side / 96 of that: the same power at every
frequency once a backbone has scaled them. Noise of 25 in each pixel of a 32×32 image would leave 24 % of 79."""


@dataclass(frozen=True)
class Scanner:
    """One kind of change with its number; ``high``: the second of the two numbers in the table."""

    kind: str
    strength: str
    high: bool
    factor: float
    gains: tuple[float, ...]
    seed: int

    @property
    def amount(self) -> float:
        return KINDS[self.kind][self.strength][self.high] * self.factor

    def __str__(self) -> str:
        return f"{self.kind} {self.amount:.3g}"

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 images N×C×H×W as this scanner gives them; noise differs from image to image."""
        return _CHANGES[self.kind](self, images.float()).round().clamp(0, 255).to(torch.uint8)


def scanners(sites: int, strength: str, seed: int, odd: int | None = None) -> list[Scanner | None]:
    """A scanner for each site; with ``odd``, only for so many of them."""
    rng = np.random.default_rng([seed, 7])
    order: list[int] = []
    while len(order) < sites:
        order += rng.permutation(2 * len(KINDS)).tolist()
    kinds, drawn = list(KINDS), []
    for number in order[:sites]:
        gains = tuple(rng.choice([-1.0, 1.0], 3).tolist())
        gains = gains if len(set(gains)) > 1 else (-gains[0], *gains[1:])
        drawn.append(Scanner(kinds[number // 2], strength, bool(number % 2), rng.uniform(0.9, 1.1), gains, seed))
    changed = range(sites) if odd is None else sorted(rng.choice(sites, odd, replace=False).tolist())
    return [scanner if site in changed else None for site, scanner in enumerate(drawn)]


def scanned(images: Tensor, sites: Sequence[int] | NDArray[np.int64], own: Sequence[Scanner | None]) -> Tensor:
    """Images, each as the scanner of its site gives it."""
    out, place = images.clone(), torch.as_tensor(np.asarray(sites))
    for site, scanner in enumerate(own):
        if scanner is not None and bool((place == site).any()):
            out[place == site] = scanner(images[place == site])
    return out


def _gamma(scanner: Scanner, x: Tensor) -> Tensor:
    return 255 * (x / 255) ** scanner.amount


def _contrast(scanner: Scanner, x: Tensor) -> Tensor:
    return (x - 127.5) * scanner.amount + 127.5


def _blur(scanner: Scanner, x: Tensor) -> Tensor:
    deviation = scanner.amount * x.shape[3]
    reach = max(int(3 * deviation + 0.5), 1)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    line = (weights / weights.sum()).view(1, 1, 1, -1).repeat(x.shape[1], 1, 1, 1)
    x = conv2d(pad(x, (reach, reach, 0, 0), "replicate"), line, groups=x.shape[1])
    return conv2d(pad(x, (0, 0, reach, reach), "replicate"), line.transpose(2, 3), groups=x.shape[1])


def _noise(scanner: Scanner, x: Tensor) -> Tensor:
    rng = torch.Generator().manual_seed(scanner.seed)
    return x + scanner.amount * x.shape[3] / FINE * torch.randn(x.shape, generator=rng)


def _cast(scanner: Scanner, x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x + (1 if scanner.high else -1) * LEVELS[scanner.strength] * scanner.factor
    if scanner.high:
        grey = (x * torch.tensor(LIGHTNESS).view(1, 3, 1, 1)).sum(1, keepdim=True)
        return x + min(scanner.amount, 1) * (grey - x)
    return x * (1 + scanner.amount * torch.tensor(scanner.gains).view(1, 3, 1, 1))


_CHANGES = {"gamma": _gamma, "contrast": _contrast, "blur": _blur, "noise": _noise, "cast": _cast}
