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

``sites`` is a dataset that a config can name; the test images come through the sites' scanners too:

    fedfew run few-labels --set dataset.name=benchmarks.scanners:sites --set dataset.draw=10 --set dataset.mu=0.3 \\
        --set dataset.unlabeled=0 --set labels=40

``of`` is another dataset, such as ``benchmarks.packaged:xrays``. With ``views``, the labels are also seen under so many
scanner-like changes (of the 21 that fedfew tries, all by default): a baseline that expects other scanners.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.samples import LabeledSet
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.partitions import make_partition
from fedfew.data.samples import Images, scans

KINDS: dict[str, dict[str, tuple[float, float]]] = {
    "gamma": {"mild": (0.75, 1.35), "strong": (0.55, 1.9)},
    "contrast": {"mild": (0.7, 1.35), "strong": (0.5, 1.7)},
    "blur": {"mild": (0.009, 0.014), "strong": (0.014, 0.021)},
    "noise": {"mild": (8.0, 12.0), "strong": (16.0, 25.0)},
    "cast": {"mild": (0.15, 0.5), "strong": (0.35, 1.0)},
}
PLAIN = {"gamma": scans.gamma, "contrast": scans.contrast, "blur": scans.blur}
LEVELS = {"mild": 20.0, "strong": 40.0}


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
        return scans.scanned(images, self._change)

    def _change(self, x: Tensor) -> Tensor:
        if self.kind in PLAIN:
            return PLAIN[self.kind](x, self.amount)
        if self.kind == "noise":
            return scans.noise(x, self.amount, self.seed)
        if x.shape[1] == 1:
            return x + (1 if self.high else -1) * LEVELS[self.strength] * self.factor
        if self.high:
            return scans.paler(x, min(self.amount, 1))
        return x * (1 + self.amount * torch.tensor(self.gains).view(1, 3, 1, 1))


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
    out, site_of = images.clone(), torch.as_tensor(np.asarray(sites))
    for site, scanner in enumerate(own):
        if scanner is not None and bool((site_of == site).any()):
            out[site_of == site] = scanner(images[site_of == site])
    return out


def sites(
    *, strength: str = "strong", odd: int = -1, sites: int = 10, images: int = 3000, tested: int = 2000,
    labels: int = 40, mu: float = 0.3, draw: int = 0, of: str = "cifar10", views: int = 0,
) -> Dataset:  # fmt: skip
    """Sites by Dirichlet(μ), each with a scanner (with ``odd`` ≥ 0 only so many); the labels come from none."""
    module, _, name = of.partition(":")
    source: Dataset = getattr(import_module(module), name)() if name else DATASETS[of]()
    truth, count = source.train.labels.numpy(), len(source.classes)
    rng = np.random.default_rng(draw)
    order = rng.permutation(len(truth))
    server = np.concatenate([order[truth[order] == label][: labels // count] for label in range(count)])
    held = rng.permutation(np.setdiff1d(order, server, assume_unique=True))[:images]
    dealt = make_partition(truth[held], sites, "dirichlet", draw, {"mu": mu})
    own = scanners(sites, strength, draw, None if odd < 0 else odd)
    site_of = np.concatenate([np.full(len(dealt.of(site)), site) for site in range(sites)])
    chosen = torch.from_numpy(np.concatenate([held[dealt.of(site)] for site in range(sites)]))
    offsets = np.searchsorted(site_of, np.arange(sites + 1)).astype(np.int64)
    pixels = scanned(source.train.samples.data[chosen], site_of, own)
    names = tuple(f"site {site}: {scanner or 'no change'}" for site, scanner in enumerate(own))
    clients = SiteSamples(names, Images(pixels), offsets, source.train.labels[chosen])
    some = torch.from_numpy(rng.permutation(len(source.test.labels))[:tested])
    seen = scanned(source.test.samples.data[some], np.arange(len(some)) % sites, own)
    test = LabeledSet(Images(seen), source.test.labels[some])
    own_labels = seen_by(source.train.take(torch.from_numpy(server)), views)
    return Dataset("sites", own_labels, test, source.classes, sites=clients)


def seen_by(labeled: LabeledSet, views: int) -> LabeledSet:
    """Labeled images as they are, and under so many of fedfew's scanner-like changes, evenly chosen."""
    if not views:
        return labeled
    some = scans.CHANGES[:: -(-len(scans.CHANGES) // views)]
    data = torch.cat([labeled.samples.data, *(scans.scanned(labeled.samples.data, change) for change in some)])
    return LabeledSet(Images(data), labeled.labels.repeat(1 + len(some)))
