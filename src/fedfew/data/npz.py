"""The dataset ``npz``: arrays in MedMNIST's layout (train_images, train_labels, val_…, test_…), Keras's, or plain ones.

Nothing is trusted: the sizes that archive and arrays claim are checked before a byte is decompressed.
"""

import math
import stat
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import numpy_stream
from fedfew.data.dataset import Dataset, shown
from fedfew.data.images.own import Flips, PathTo
from fedfew.data.samples import Images
from fedfew.data.shares import Indices, ranks

Arrays = dict[str, NDArray[Any]]

INFLATED_CAP = 4 * 2**30
"""Bytes of the largest archive, decompressed."""
FREE, RATIO = 64 * 2**20, 100
"""Beyond this many bytes, content that expands by more than this factor is not an image."""
MEMBER_CAP = 64
HELD_OUT = 6
"""For arrays without a test part, one image in this many goes to the test set."""
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
    sets = {part: _part(arrays, names, where, flips) for part, names in PARTS.items()}
    train = sets["train"]
    if train is None:
        have = ", ".join(sorted(arrays)) or "nothing usable"
        raise FedfewError(
            "E204", where, f"it holds {have}", "It needs train_images and train_labels, or images and labels"
        )
    if sets["val"] is not None:
        _same_shape(train, sets["val"], where)
        train = train.join(sets["val"])
    train, test = (train, sets["test"]) if sets["test"] is not None else hold_out(train)
    _same_shape(train, test, where)
    return Dataset("npz", train, test, _classes(arrays, train, test, where))


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
        shape, dtype = _header(stream)
        if dtype.hasobject:
            raise FedfewError("E204", where, f"{info.filename} holds Python objects, which are not read")
        if math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
            raise FedfewError(
                "E202", where, f"{info.filename} claims {dtype} {shape}, but has {info.file_size:,} bytes"
            )
    with archive.open(info) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"array format {version} is not read")
    shape, _, dtype = read(stream)
    return shape, dtype


def _part(arrays: Arrays, names: tuple[tuple[str, str], ...], where: str, flips: bool) -> LabeledSet | None:
    for images, labels in names:
        if images in arrays and labels in arrays:
            pixels = pictures(arrays[images], f"{where} {images}")
            truth = _labels(arrays[labels], f"{where} {labels}")
            if len(pixels) != len(truth):
                raise FedfewError("E204", where, f"{len(pixels):,} {images} have {len(truth):,} {labels}")
            return LabeledSet(Images(torch.from_numpy(pixels), flips), torch.from_numpy(truth))
    return None


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


def _labels(array: NDArray[Any], where: str) -> Indices:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        shape = f"{array.dtype} {array.shape}"
        raise FedfewError("E204", where, f"is {shape}; one whole number for each image is needed")
    if len(array) and int(array.min()) < 0:
        raise FedfewError("E204", where, "has labels below 0")
    return array.astype(np.int64)


def _classes(arrays: Arrays, train: LabeledSet, test: LabeledSet, where: str) -> tuple[str, ...]:
    count = max(int(part.labels.max()) + 1 for part in (train, test) if len(part))
    for name in NAMES:
        if name in arrays:
            names = tuple(str(entry) for entry in arrays[name].ravel().tolist())
            if len(names) < count:
                raise FedfewError("E204", where, f"{name} has {len(names)} names, but labels go up to {count - 1}")
            return names
    if count > len(train) + len(test):
        raise FedfewError("E204", where, f"labels go up to {count - 1:,} for {len(train) + len(test):,} images")
    return tuple(str(c) for c in range(count))


def _same_shape(first: LabeledSet, second: LabeledSet, where: str) -> None:
    shapes = [tuple(part.samples.data.shape[1:]) for part in (first, second)]
    if shapes[0] != shapes[1]:
        raise FedfewError("E204", where, f"its parts have images of different shapes, {shapes[0]} and {shapes[1]}")


def hold_out(labeled: LabeledSet) -> tuple[LabeledSet, LabeledSet]:
    """Every sixth image of each class at random, always the same ones, for data that has no test part."""
    order = numpy_stream(0, "held-out test").permutation(len(labeled))
    tested = np.zeros(len(labeled), bool)
    tested[order] = ranks(labeled.labels.numpy()[order]) % HELD_OUT == HELD_OUT - 1
    train, test = (torch.from_numpy(np.flatnonzero(chosen)) for chosen in (~tested, tested))
    return labeled.take(train), labeled.take(test)
