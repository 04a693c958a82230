"""The datasets a config can name: train and test images as tensors, class names, and whether mirroring is harmless."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch

from fedfew.core.errors import FedfewError
from fedfew.core.types import LabeledSet

DIGITS = tuple("0123456789")
MINI_MNIST_SHA256 = "02a99df9e3847ef676cc0db82f638a882ff1a3e0640faa1a4a6a78d3cbbd6ac8"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with labels; ``flips`` says that a mirrored image keeps its class (not so for digits)."""

    name: str
    train: LabeledSet
    test: LabeledSet
    classes: tuple[str, ...]
    flips: bool = True


def mini_mnist() -> Dataset:
    """7,000 MNIST digits that come with the package, so that the first command needs no network."""
    file = files("fedfew.data") / "assets" / "mini-mnist.npz"
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != MINI_MNIST_SHA256:
        raise FedfewError("E202", str(file), "the file is not as it was shipped", "Install fedfew again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        train, test = (
            LabeledSet(
                torch.from_numpy(arrays[f"{part}_images"]).unsqueeze(1),
                torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64)),
            )
            for part in ("train", "test")
        )
    return Dataset("mini-mnist", train, test, DIGITS, flips=False)


DATASETS: dict[str, Callable[[], Dataset]] = {
    "mini-mnist": mini_mnist,
}
