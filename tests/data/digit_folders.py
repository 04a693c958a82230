"""Digits and photographs written out as folders of files: server/<class>/, clients/<site>/, test/<class>/."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from fedfew.data import DATASETS
from fedfew.data.images.folders import LABELS
from fedfew.data.included import mini_mnist

CLASSES = ("airplane", "automobile", "frog", "ship")
SUFFIXES = ("png", "jpg", "bmp", "webp")


def write_digits(root: Path, server: int = 60, clients: int = 200, test: int = 80, sites: int = 4) -> Path:
    """A folder of mini-mnist's digits; site k holds digits that are near to 10·k/sites, so sites differ."""
    digits = mini_mnist()
    names = [f"hospital-{k}" for k in range(sites)]
    for i in range(server + clients):
        image, digit = digits.train.samples.data[i, 0], int(digits.train.labels[i])
        place = f"server/digit {digit}" if i < server else f"clients/{names[digit * sites // 10]}"
        put(root / place / f"{i:05d}.png", image)
    for i in range(test):
        put(root / f"test/digit {int(digits.test.labels[i])}" / f"{i:05d}.png", digits.test.samples.data[i, 0])
    return root


def put(path: Path, pixels: Tensor) -> None:
    """One grey PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(path)


def write_photographs(
    root: Path, labels: int = 30, sites: int = 5, images: int = 800, test: int = 2000, *, seed: int = 0
) -> Path:
    """CIFAR-10 as a hospital network would have it: few labels, skewed sites, mixed files.

    4 classes; each site has 70 % of one class; sides of 32 to 80 pixels, four formats; test labels as a CSV.
    """
    rng = np.random.default_rng(seed)
    photos = DATASETS["cifar10"]()
    numbers = [photos.classes.index(name) for name in CLASSES]
    stock = {c: list(rng.permutation(np.flatnonzero(photos.train.labels.numpy() == c))) for c in numbers}
    for i in range(labels):
        c = numbers[i % len(numbers)]
        put_image(root / "server" / photos.classes[c], photos.train.samples.data[stock[c].pop()].numpy(), i)
    for k in range(sites):
        most = [0.7 if j == k % len(numbers) else 0.1 for j in range(len(numbers))]
        for i, c in enumerate(rng.choice(numbers, images, p=most)):
            put_image(
                root / "clients" / f"site-{'ABCDEFGH'[k]}", photos.train.samples.data[stock[int(c)].pop()].numpy(), i
            )
    lines = ["image,label"]
    held = np.concatenate([np.flatnonzero(photos.test.labels.numpy() == c)[: test // len(numbers)] for c in numbers])
    for i, place in enumerate(held.tolist()):
        name = put_image(root / "test" / "images", photos.test.samples.data[place].numpy(), i)
        lines.append(f"images/{name},{photos.classes[int(photos.test.labels[place])]}")
    (root / "test" / LABELS).write_text("\n".join(lines) + "\n", "utf-8")
    return root


def put_image(folder: Path, pixels: np.ndarray, number: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{number:04d}.{SUFFIXES[number % len(SUFFIXES)]}"
    width, height = 32 + 8 * (number % 7), 32 + 8 * (number % 5)
    Image.fromarray(pixels.transpose(1, 2, 0)).resize((width, height), Image.Resampling.BICUBIC).save(folder / name)
    return name
