"""Datasets that come with the package, so that the first command needs no network."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset
from fedfew.data.samples import Images

ASSETS = Path(__file__).parent / "assets"
SHIPPED = {
    "mini-mnist": "02a99df9e3847ef676cc0db82f638a882ff1a3e0640faa1a4a6a78d3cbbd6ac8",
    "mini-cifar": "1ccf4d01213193b25619cbf26c81dd1795b407b7e8b18de080eea6ec0aab50e7",
}
"""Datasets that come with the package, and the SHA-256 of their files."""
DIGITS = tuple("0123456789")
ANIMALS_AND_VEHICLES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def mini_mnist() -> Dataset:
    """7,000 MNIST digits that come with the package."""
    arrays = _shipped("mini-mnist")
    train, test = (
        labeled(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"].astype(np.int64), flips=False)
        for part in ("train", "test")
    )
    return Dataset("mini-mnist", train, test, DIGITS)


def mini_cifar() -> Dataset:
    """2,800 photographs of CIFAR-10 that come with the package, as tiles of one JPEG picture."""
    arrays = _shipped("mini-cifar")
    with Image.open(io.BytesIO(arrays["sheet"].tobytes())) as picture:
        sheet = np.asarray(picture)
    channels, side = 3, 32
    rows, columns = sheet.shape[0] // side, sheet.shape[1] // side
    tiles = sheet.reshape(rows, side, columns, side, channels).transpose(0, 2, 4, 1, 3)
    images = tiles.reshape(rows * columns, channels, side, side)
    first, then = (arrays[f"{part}_labels"].astype(np.int64) for part in ("train", "test"))
    train = labeled(images[: len(first)], first)
    test = labeled(images[len(first) : len(first) + len(then)], then)
    return Dataset("mini-cifar", train, test, ANIMALS_AND_VEHICLES)


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


def labeled(images: NDArray[Any], labels: NDArray[Any], flips: bool = True) -> LabeledSet:
    """uint8 images N×C×H×W with their classes."""
    return LabeledSet(Images(torch.from_numpy(images), flips), torch.from_numpy(labels))
