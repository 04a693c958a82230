"""The datasets ``npz`` and ``medmnist``: arrays in MedMNIST's layout (train_images, train_labels, val_…), or Keras's.

Nothing is trusted: the sizes that archive and arrays claim are checked before a byte is decompressed.
"""

import math
import stat
import tomllib
import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc
from fedfew.data.cache import cache_folder
from fedfew.data.dataset import Dataset, dataset_of, numbered, shown
from fedfew.data.images.own import Flips, PathTo
from fedfew.data.included import ASSETS
from fedfew.data.samples import Images

Arrays = dict[str, NDArray[Any]]

INFLATED_CAP = 4 * 2**30
"""Bytes of the largest archive, decompressed."""
MEDMNIST_CAP = 20 * 2**30
"""PathMNIST at 224 pixels has 16 GB."""
FREE, RATIO = 64 * 2**20, 100
"""Beyond this many bytes, content that expands by more than this factor is not an image."""
MEMBER_CAP = 64
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
PARTS = {
    "train": (("train_images", "train_labels"), ("x_train", "y_train"), ("images", "labels")),
    "val": (("val_images", "val_labels"), ("x_val", "y_val")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
NAMES = ("classes", "label_names", "class_names")
KNOWN = (*(name for pairs in PARTS.values() for pair in pairs for name in pair), *NAMES)


def npz(*, path: PathTo = "", flips: Flips = True) -> Dataset:
    """Your own arrays in an NPZ file, such as MedMNIST (its validation images join the training images)."""
    if not path:
        raise FedfewError("E206", "dataset.path", "is missing", 'Write path = "FILE.npz" under [dataset]')
    return _dataset(Path(path).expanduser(), flips)


def medmnist(
    *,
    subset: Annotated[str, Doc("which of its sets, e.g. pathmnist")] = "pathmnist",
    size: Annotated[Literal[28, 64, 128, 224], Doc("pixels a side; each is a file of its own")] = 28,
    flips: Flips = True,
) -> Dataset:
    """Medical images of eleven kinds, 28 to 224 pixels a side (Yang et al. 2023)."""
    file = subset if size == 28 else f"{subset}_{size}"
    if file not in medmnist_files():
        raise FedfewError("E105", "dataset.subset", f"no set {subset!r}; there are {', '.join(_medmnist())}")
    path, command = medmnist_path(file), f"fedfew data fetch {file}"
    if not path.is_file():
        remedy = f"Run `{command}`, or `{command} --from PATH` with a local copy."
        raise FedfewError("E201", f"dataset medmnist {file}", f"it is not in {path.parent}", remedy)
    return replace(_dataset(path, flips, _medmnist()[subset]["classes"], MEDMNIST_CAP), name="medmnist")


@cache
def _medmnist() -> dict[str, Any]:
    return tomllib.loads((ASSETS / "medmnist.toml").read_text("utf-8"))


@cache
def medmnist_files() -> dict[str, tuple[str, str]]:
    """The files of MedMNIST that can be read, with their address and MD5."""
    return {
        file: (f"https://zenodo.org/records/10519652/files/{file}.npz", table[side])
        for name, table in _medmnist().items()
        for side in ("28", "64", "128", "224")
        if (file := name if side == "28" else f"{name}_{side}")
    }


def medmnist_path(file: str) -> Path:
    """Where a fetched file of MedMNIST is."""
    return cache_folder() / "medmnist" / file / f"{file}.npz"


def _dataset(path: Path, flips: bool, names: Sequence[str] = (), cap: int = INFLATED_CAP) -> Dataset:
    """The arrays of a file as a dataset; ``names`` are those of the classes if the file has none."""
    where = shown(path)
    arrays = read_npz(path, cap=cap)
    parts = {part: pair for part, pairs in PARTS.items() for pair in reversed(pairs) if arrays.keys() >= set(pair)}
    if "train" not in parts:
        have = ", ".join(sorted(arrays)) or "nothing usable"
        remedy = "It needs train_images and train_labels, or images and labels"
        raise FedfewError("E204", where, f"it holds {have}", remedy)
    names = next((arrays[name].ravel().tolist() for name in NAMES if name in arrays), names)
    classes, labels = numbered([arrays[name] for _, name in parts.values()], names, where)
    sets = {}
    for (part, pair), truth in zip(parts.items(), labels, strict=True):
        pixels = pictures(arrays[pair[0]], f"{where} {pair[0]}")
        if len(pixels) != len(truth):
            raise FedfewError("E204", where, f"{len(pixels):,} {pair[0]} have {len(truth):,} {pair[1]}")
        sets[part] = LabeledSet(Images(torch.from_numpy(pixels), flips), truth)
    shapes = {tuple(part.samples.data.shape[1:]) for part in sets.values()}
    if len(shapes) > 1:
        raise FedfewError("E204", where, f"its parts have images of different shapes, {' and '.join(map(str, shapes))}")
    train = sets["train"].join(sets["val"]) if "val" in sets else sets["train"]
    return dataset_of("npz", classes, train, sets.get("test"))


def read_npz(path: Path, known: Collection[str] = KNOWN, cap: int = INFLATED_CAP) -> Arrays:
    """The arrays that have a known name, read without pickle and within the caps."""
    where = shown(path)
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise FedfewError("E206", where, "is not a file", "Give the path of an NPZ file")
        with zipfile.ZipFile(path) as archive:
            _refuse_bomb(archive, about.st_size, cap, where)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            return {name: _array(archive, members[name], where) for name in sorted(set(known) & set(members))}
    except FileNotFoundError:
        raise FedfewError("E206", where, "does not exist", "Give the path of an NPZ file") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError, RuntimeError) as error:
        raise FedfewError("E204", where, f"it cannot be read as an NPZ file ({error})") from None


def _refuse_bomb(archive: zipfile.ZipFile, size: int, cap: int, where: str) -> None:
    members = archive.infolist()
    claimed = sum(info.file_size for info in members)
    if len(members) > MEMBER_CAP:
        raise FedfewError("E205", where, f"it has {len(members):,} members, the limit is {MEMBER_CAP}")
    if claimed > cap or (claimed > FREE and claimed > RATIO * size):
        times = claimed / max(size, 1)
        raise FedfewError("E205", where, f"it would inflate to {claimed / 2**20:,.0f} MB, {times:,.0f} times its size")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> NDArray[Any]:
    """One array; its header must account for exactly the bytes of the member, so no claim alone allocates memory."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"array format {version} is not read")
        shape, _, dtype = HEADERS[version](stream)
        if dtype.hasobject:
            raise FedfewError("E204", where, f"{info.filename} holds Python objects, which are not read")
        if not dtype.itemsize or math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
            claim = f"{info.filename} claims {dtype} {shape}, but has {info.file_size:,} bytes"
            raise FedfewError("E202", where, claim)
    with archive.open(info) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def pictures(array: NDArray[Any], where: str) -> NDArray[np.uint8]:
    """uint8 N×C×H×W from N×H×W, N×H×W×C or N×C×H×W; floats in 0..1 and bools are scaled to 0..255."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or array.shape[2] != array.shape[3]:
        raise FedfewError("E204", where, f"has the shape {array.shape}; square images with 1 or 3 channels are needed")
    if array.dtype == np.bool_ or (array.dtype.kind == "f" and len(array) and array.min() >= 0 and array.max() <= 1):
        array = np.rint(array * np.float32(255)).astype(np.uint8)
    if array.dtype != np.uint8:
        raise FedfewError("E204", where, f"is {array.dtype}; uint8, bool, or floats from 0 to 1 are needed")
    return np.ascontiguousarray(array)
