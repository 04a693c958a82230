"""The dataset ``femnist``: handwritten characters by writer, as LEAF's JSON or as parquet files of Hugging Face."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.data.dataset import Dataset, dataset_of, shown
from fedfew.data.images.own import PathTo
from fedfew.data.included import labeled
from fedfew.data.tables import huggingface, parquet

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SIDE = 28
HUB = "flwrlabs/femnist"
COLUMNS = {"image": "image", "label": "character", "user": "writer_id"}
Part = tuple[list[NDArray[np.uint8]], list[int], list[str]]
"""Images, classes and writers."""


def femnist(*, path: PathTo = "") -> Dataset:
    """800,000 characters by 3,550 writers, 28×28 (Caldas et al. 2018); a writer can be a client."""
    root = Path(path).expanduser()
    if not path or next(root.rglob("*.parquet"), None):
        options = {"size": SIDE, "channels": 1, "flips": False, **COLUMNS}
        read = parquet(path=path, **options) if path else huggingface(hub=HUB, **options)  # type: ignore[arg-type]
        return replace(read, name="femnist")
    parts: dict[bool, Part] = {False: ([], [], []), True: ([], [], [])}
    files = [root] if root.is_file() else sorted(root.rglob("*.json"))
    for file in files:
        for image, label, writer in _samples(file):
            images, labels, writers = parts[file.parent.name == "test"]
            images.append(image)
            labels.append(label)
            writers.append(writer)
    if not parts[False][0]:
        remedy = "Give a folder with LEAF's JSON files (all_data, or train and test) or with parquet files"
        raise FedfewError("E206", shown(path), "there are no characters to learn from", remedy)
    train, test = (
        labeled(np.array(images, np.uint8).reshape(-1, 1, SIDE, SIDE), np.array(labels, np.int64), flips=False)
        for images, labels, _ in parts.values()
    )
    return dataset_of("femnist", CHARACTERS, train, test, parts[False][2])


def _samples(file: Path) -> Iterator[tuple[NDArray[np.uint8], int, str]]:
    """Image, class and writer of every character in one of LEAF's files; its pixels are from 0 to 1."""
    try:
        content = json.loads(file.read_bytes())
        for writer in content["users"]:
            data = content["user_data"][writer]
            for pixels, label in zip(data["x"], data["y"], strict=True):
                image = np.rint(np.array(pixels, np.float32).reshape(1, SIDE, SIDE) * 255)
                if not 0 <= image.min() <= image.max() <= 255:
                    raise ValueError("pixels are not from 0 to 1")
                yield image.astype(np.uint8), int(label), str(writer)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedfewError("E204", shown(file), f"it is not one of LEAF's files of FEMNIST ({error!r})") from None
