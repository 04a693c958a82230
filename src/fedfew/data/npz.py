"""The dataset ``npz``: arrays in MedMNIST's layout (train_images, train_labels, val_…, test_…), Keras's, or plain ones.

Nothing is trusted: the sizes that archive and arrays claim are checked before a byte is decompressed.
"""

import math
import stat
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset, hold_out, numbered, shown
from fedfew.data.images.own import Flips, PathTo
from fedfew.data.samples import Images

Arrays = dict[str, NDArray[Any]]

INFLATED_CAP = 4 * 2**30
"""Bytes of the largest archive, decompressed."""
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
    where = shown(path)
    arrays = read_npz(Path(path).expanduser())
    parts = {part: pair for part, pairs in PARTS.items() for pair in reversed(pairs) if arrays.keys() >= set(pair)}
    if "train" not in parts:
        have = ", ".join(sorted(arrays)) or "nothing usable"
        remedy = "It needs train_images and train_labels, or images and labels"
        raise FedfewError("E204", where, f"it holds {have}", remedy)
    names = next((arrays[name].ravel().tolist() for name in NAMES if name in arrays), ())
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
    train, test = (train, sets["test"]) if "test" in sets else hold_out(train)
    return Dataset("npz", train, test, classes)


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
        if math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
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
