"""The datasets a config can name: train and test images as tensors, class names, and whether mirroring is harmless."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.types import LabeledSet
from fedfew.data.cache import cache_folder, is_fetched, load
from fedfew.data.dataset import Dataset
from fedfew.data.formats import Shape
from fedfew.data.images.own import folder
from fedfew.data.npz import npz
from fedfew.data.recipes import RECIPES
from fedfew.data.tables import huggingface, parquet

MINI_MNIST = Path(__file__).parent / "assets" / "mini-mnist.npz"
MINI_MNIST_SHA256 = "02a99df9e3847ef676cc0db82f638a882ff1a3e0640faa1a4a6a78d3cbbd6ac8"
MINI_MNIST_SHAPE = Shape(5_500, 1_500, (1, 28, 28))
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
    content = MINI_MNIST.read_bytes()
    if hashlib.sha256(content).hexdigest() != MINI_MNIST_SHA256:
        raise FedfewError("E202", str(MINI_MNIST), "the file is not as it was shipped", "Install fedfew again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        train, test = (
            _labeled(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"].astype(np.int64))
            for part in ("train", "test")
        )
    return Dataset("mini-mnist", train, test, DIGITS, flips=False)


def cifar10() -> Dataset:
    """60,000 color photographs of ten kinds of animals and vehicles, 32×32 (Krizhevsky 2009)."""
    return _fetched("cifar10")


def mnist() -> Dataset:
    """70,000 handwritten digits, 28×28 (LeCun, Cortes and Burges 1998)."""
    return _fetched("mnist")


def fashion_mnist() -> Dataset:
    """70,000 photographs of ten kinds of clothing, 28×28 (Xiao, Rasul and Vollgraf 2017)."""
    return _fetched("fashion-mnist")


DATASETS: dict[str, Callable[..., Dataset]] = {
    "mini-mnist": mini_mnist,
    "cifar10": cifar10,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "folder": folder,
    "npz": npz,
    "parquet": parquet,
    "huggingface": huggingface,
}


def inventory() -> list[Entry]:
    """All datasets, whether they are here or not, without reading them."""
    shape = MINI_MNIST_SHAPE
    entries = [Entry("mini-mnist", True, shape.train, shape.test, shape.image, DIGITS, MINI_MNIST)]
    for name, recipe in RECIPES.items():
        shape, path = recipe.shape, cache_folder() / name
        entries.append(Entry(name, is_fetched(name), shape.train, shape.test, shape.image, recipe.classes, path))
    return entries


def _fetched(name: str) -> Dataset:
    recipe = RECIPES[name]
    arrays = load(recipe)
    train, test = (_labeled(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return Dataset(name, train, test, recipe.classes, recipe.flips)


def _labeled(images: NDArray[Any], labels: NDArray[Any]) -> LabeledSet:
    return LabeledSet(torch.from_numpy(images), torch.from_numpy(labels))
