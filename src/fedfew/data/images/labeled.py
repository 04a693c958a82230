"""The dataset ``image-folder``: labeled images in folders or with a table, divided among simulated clients."""

import csv
import re
from pathlib import Path
from typing import Annotated

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc
from fedfew.data.dataset import Dataset, Problem, dataset_of, numbered, shown
from fedfew.data.images.folders import Folder, ImageFile, existing, scan_labeled, walk
from fedfew.data.images.own import Channels, Flips, PathTo, Size
from fedfew.data.samples import Images

TEST = ("test", "val", "valid", "validation")
"""Folders of test images, the first that is there."""


def image_folder(
    *,
    path: PathTo = "",
    size: Size = 64,
    channels: Channels = 3,
    flips: Flips = True,
    table: Annotated[
        str, Doc("CSV below the path with columns image and label, or with a column of 0 and 1 for each class (ISIC)")
    ] = "",
    user: Annotated[str, Doc("pattern whose first group in an image's path is its user, e.g. a patient")] = "",
) -> Dataset:
    """Labeled images: <class>/… or train/<class>/… and test/<class>/… (ImageNet and its subsets), or a table (ISIC)."""
    root = existing(path)
    if table:
        parts = [_listed(root, table)]
    else:
        learned = root / "train" if (root / "train").is_dir() else root
        tested = next((root / name for name in TEST if learned != root and (root / name).is_dir()), None)
        parts = [scan_labeled(part) for part in (learned, tested) if part]
    parts = [part.read(size, channels) for part in parts]
    if not parts[0].files:
        raise FedfewError("E206", shown(root), "there is no readable labeled image", "Put images into <class>/ folders")
    classes, labels = numbered([[file.group for file in part.files] for part in parts], (), shown(root))
    sets = [LabeledSet(Images(part.images, flips), truth) for part, truth in zip(parts, labels, strict=True)]
    problems = [problem for part in parts for problem in part.problems]
    users = _users(parts[0], user) if user else ()
    test = sets[1] if len(sets) > 1 else None
    return dataset_of("image-folder", tuple(map(shown, classes)), sets[0], test, users, problems)


def _users(folder: Folder, pattern: str) -> list[str]:
    """The user of every image."""
    try:
        matches = [re.search(pattern, file.path) for file in folder.files]
        names = [match[1] for match in matches if match]
    except (re.error, IndexError) as error:
        raise FedfewError("E103", "dataset.user", f"{pattern!r} is no pattern with a group ({error})") from None
    if len(names) < len(matches):
        missing = shown(folder.files[[match is None for match in matches].index(True)].path)
        raise FedfewError("E103", "dataset.user", f"{pattern!r} does not occur in {missing}")
    return names


def _listed(root: Path, table: str) -> Folder:
    """The images that a table names, with or without the ends of their files' names."""
    problems: list[Problem] = []
    files = {Path(name).stem: name for name in walk(root, "", problems) if name != table}
    try:
        with (root / table).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        named = [(Path(row["image"]).stem, _label(row)) for row in rows]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        remedy = "It needs a column image, and a column label or one column of 0 and 1 for each class"
        raise FedfewError("E206", shown(root / table), f"cannot be used ({error})", remedy) from None
    problems += [Problem(name, f"is in {table}, but there is no such file") for name, _ in named if name not in files]
    listed = sorted((files[name], label) for name, label in named if name in files)
    return Folder(root, [ImageFile(name, "", label) for name, label in listed], problems)


def _label(row: dict[str, str]) -> str:
    """The class of a row: its label, or the one column that has a 1."""
    if "label" in row:
        return row["label"]
    ones = [name for name, value in row.items() if name != "image" and float(value) == 1]
    if len(ones) != 1:
        raise ValueError(f"{row['image']} is of {len(ones)} classes")
    return ones[0]
