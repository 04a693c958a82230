"""Patients, or whatever several images share: such images are not independent, and stay on one side of a split.

A column ``group`` in labels.csv names them, or a pattern of file names does, or DICOM files say it themselves.
"""

import contextlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.extras import import_optional
from fedfew.data.images.folders import Folder, ImageFile
from fedfew.data.images.grey import is_dicom

HEADER = 1 << 20
"""Bytes of a DICOM file in which its patient is looked for."""


def with_subjects(folder: Folder, pattern: str = "") -> Folder:
    """The folder whose files know the patient or other group that they belong to, as far as it can be told.

    A ``pattern`` decides for all files. Without one, labels.csv does, or else the PatientID of labeled DICOM files.
    """
    if not pattern:
        return replace(folder, files=[_dicom(folder.root, file) for file in folder.files])
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise FedfewError("E103", "dataset.group", f"{pattern!r} is not a pattern: {error}") from None
    matches = [search(Path(file.path).name) for file in folder.files]
    if not any(matches):
        problem, remedy = f"{pattern!r} matches no file name", r"For p12_03.png of patient p12, write --group '(\w+)_'"
        raise FedfewError("E103", "dataset.group", problem, remedy)
    names = [(match[1] if match.re.groups else match[0]) or "" if match else "" for match in matches]
    return replace(folder, files=[replace(f, subject=name) for f, name in zip(folder.files, names, strict=True)])


def thinned(folder: Folder, most: int) -> Folder:
    """The folder with at most so many files of each patient or other group, the first of them."""
    seen: Counter[str] = Counter()
    kept = []
    for file in folder.files:
        seen[file.subject] += 1
        if not file.subject or seen[file.subject] <= most:
            kept.append(file)
    return replace(folder, files=kept)


def _dicom(root: Path, file: ImageFile) -> ImageFile:
    if file.subject or file.part == "clients":
        return file
    with contextlib.suppress(OSError), (root / file.path).open("rb") as opened:
        content = opened.read(132)
        if is_dicom(content):
            pydicom = import_optional("pydicom", "fedfew[data]", "DICOM images")
            with contextlib.suppress(Exception):  # what is wrong with the file is said when it is decoded
                stream = io.BytesIO(content + opened.read(HEADER))
                header = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=["PatientID"])
                return replace(file, subject=str(header.get("PatientID") or ""))
    return file


def numbers(files: Sequence[ImageFile], known: dict[str, int]) -> Tensor | None:
    """A number for the group of each file, the same for the same name; a file without one is its own group.

    None if no file has a group. ``known`` collects the numbers: names go no further.
    """
    if not any(file.subject for file in files):
        return None
    named = (file.subject or f"file {file.path}" for file in files)
    return torch.from_numpy(np.array([known.setdefault(name, len(known)) for name in named], np.int64))
