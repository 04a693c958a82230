"""Small datasets in every published format, made up on the spot, and recipes that accept exactly them."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedfew.data.fetched import BATCHES, IDX, PARTS, RECIPES, Arrays, Recipe


def small(name: str, train: int = 20, test: int = 6, unlabeled: int = 0) -> tuple[Recipe, Arrays]:
    """The recipe of a dataset, but for a few random images, and those images."""
    rng = np.random.default_rng(7)
    recipe = replace(RECIPES[name], train=train, test=test, unlabeled=unlabeled)
    arrays: Arrays = {}
    for part in recipe.parts:
        values = rng.integers(0, 256 if part.endswith("images") else 10, recipe.shape(part))
        arrays[part] = values.astype(np.uint8) if part.endswith("images") else values.astype(np.int64)
    pins = {part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in arrays.items()}
    return replace(recipe, sha256=pins), arrays


def install(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Recipe, Arrays]:
    """Make the small dataset the one that is fetched under this name."""
    recipe, arrays = small(name)
    recipe = replace(recipe, **changes)
    monkeypatch.setitem(RECIPES, name, recipe)
    return recipe, arrays


def same(one: Arrays, other: Arrays) -> bool:
    """Whether both hold the same values of the same types."""
    return all((one[part] == other[part]).all() and one[part].dtype == other[part].dtype for part in PARTS)


def batches(arrays: Arrays) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five train batches and the test batch, as CIFAR is published."""
    step = len(arrays["train_labels"]) // 5
    cut = {
        name: (arrays["train_images"][i * step : (i + 1) * step], arrays["train_labels"][i * step : (i + 1) * step])
        for i, name in enumerate(BATCHES[:-1])
    }
    return cut | {"test_batch": (arrays["test_images"], arrays["test_labels"])}


def cifar_binary(arrays: Arrays) -> dict[str, bytes]:
    return {
        f"cifar-10-batches-bin/{name}.bin": np.hstack(
            [labels[:, None].astype(np.uint8), images.reshape(len(labels), -1)]
        ).tobytes()
        for name, (images, labels) in batches(arrays).items()
    }


def cifar_png(arrays: Arrays) -> dict[str, bytes]:
    files = {
        f"package/{part}_lables.json": json.dumps(arrays[f"{part}_labels"].tolist()).encode()
        for part in ("train", "test")
    }
    for name, (images, _) in batches(arrays).items():
        buffer = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3)).save(buffer, "PNG")
        files[f"package/{name}.png"] = buffer.getvalue()
    return files


def idx(arrays: Arrays, folder: str = "package/data/", zipped: bool = False) -> dict[str, bytes]:
    files = {}
    for part, name in IDX.items():
        values = arrays[part].squeeze(1) if part.endswith("images") else arrays[part]
        content = (
            struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()
        )
        files[f"{folder}{name}{'.gz' if zipped else ''}"] = gzip.compress(content) if zipped else content
    return files


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The files below a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """The files in a gzipped tar."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
