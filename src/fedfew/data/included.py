"""The datasets a config can name: train and test images with their labels, and the names of the classes."""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.cache import cache_folder, is_fetched, load
from fedfew.data.dataset import Dataset
from fedfew.data.formats import Shape
from fedfew.data.recipes import RECIPES
from fedfew.data.samples import Images

ASSETS = Path(__file__).parent / "assets"
SHIPPED = {
    "mini-mnist": "02a99df9e3847ef676cc0db82f638a882ff1a3e0640faa1a4a6a78d3cbbd6ac8",
    "mini-cifar": "1ccf4d01213193b25619cbf26c81dd1795b407b7e8b18de080eea6ec0aab50e7",
}
"""Datasets that come with the package, and the SHA-256 of their files."""
MINI_MNIST_SHAPE, MINI_CIFAR_SHAPE = Shape(5_500, 1_500, (1, 28, 28)), Shape(2_200, 600, (3, 32, 32))
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Entry:
    """One line of ``fedfew data ls``."""

    name: str
    fetched: bool
    train: int
    test: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    path: Path

    @property
    def images(self) -> int:
        """Train and test together."""
        return self.train + self.test


def mini_mnist() -> Dataset:
    """7,000 MNIST digits that come with the package, so that the first command needs no network."""
    arrays = _shipped("mini-mnist")
    train, test = (
        _labeled(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"].astype(np.int64), flips=False)
        for part in ("train", "test")
    )
    return Dataset("mini-mnist", train, test, DIGITS)


def mini_cifar() -> Dataset:
    """2,800 photographs of CIFAR-10 that come with the package, as tiles of one JPEG picture."""
    arrays = _shipped("mini-cifar")
    with Image.open(io.BytesIO(arrays["sheet"].tobytes())) as picture:
        sheet = np.asarray(picture)
    channels, side, _ = MINI_CIFAR_SHAPE.image
    rows, columns = sheet.shape[0] // side, sheet.shape[1] // side
    tiles = sheet.reshape(rows, side, columns, side, channels).transpose(0, 2, 4, 1, 3)
    images = tiles.reshape(rows * columns, channels, side, side)
    first, then = (arrays[f"{part}_labels"].astype(np.int64) for part in ("train", "test"))
    train = _labeled(images[: len(first)], first)
    test = _labeled(images[len(first) : len(first) + len(then)], then)
    return Dataset("mini-cifar", train, test, RECIPES["cifar10"].classes)


def asset(name: str) -> Path:
    """The file of a dataset that comes with the package."""
    return ASSETS / f"{name}.npz"


def _shipped(name: str) -> dict[str, NDArray[Any]]:
    """The arrays of a file that comes with the package."""
    path = asset(name)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHIPPED[name]:
        raise FedfewError("E202", str(path), "the file differs from the one that was shipped", "Install fedfew again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def cifar10() -> Dataset:
    """60,000 color photographs of ten kinds of animals and vehicles, 32×32 (Krizhevsky 2009)."""
    return _fetched("cifar10")


def mnist() -> Dataset:
    """70,000 handwritten digits, 28×28 (LeCun, Cortes and Burges 1998)."""
    return _fetched("mnist")


def fashion_mnist() -> Dataset:
    """70,000 photographs of ten kinds of clothing, 28×28 (Xiao, Rasul and Vollgraf 2017)."""
    return _fetched("fashion-mnist")


def inventory() -> list[Entry]:
    """All datasets, fetched or not, without reading them."""
    shipped = (("mini-mnist", MINI_MNIST_SHAPE, DIGITS), ("mini-cifar", MINI_CIFAR_SHAPE, RECIPES["cifar10"].classes))
    entries = [Entry(n, True, s.train, s.test, s.image, classes, asset(n)) for n, s, classes in shipped]
    for name, recipe in RECIPES.items():
        shape, path = recipe.shape, cache_folder() / name
        entries.append(Entry(name, is_fetched(name), shape.train, shape.test, shape.image, recipe.classes, path))
    return entries


def _fetched(name: str) -> Dataset:
    recipe = RECIPES[name]
    arrays = load(recipe)
    train, test = (
        _labeled(arrays[f"{part}_images"], arrays[f"{part}_labels"], recipe.flips) for part in ("train", "test")
    )
    return Dataset(name, train, test, recipe.classes)


def _labeled(images: NDArray[Any], labels: NDArray[Any], flips: bool = True) -> LabeledSet:
    return LabeledSet(Images(torch.from_numpy(images), flips), torch.from_numpy(labels))
