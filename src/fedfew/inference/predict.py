"""Predictions for images, tables and texts: read as in training, class probabilities, optionally the site's mix."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples, joined
from fedfew.core.types import Report
from fedfew.data.dataset import Problem, shown
from fedfew.data.images.folders import Folder, ImageFile, walk
from fedfew.data.samples import Images
from fedfew.runs.run import Run
from fedfew.training.label_shift import CONCENTRATION, own_class_mix, tempered


@dataclass(frozen=True, eq=False)
class Found:
    """The samples of files as a model takes them, with a name for each; images that cannot be read are problems."""

    names: list[str]
    samples: Samples
    problems: list[Problem]
    kind: str = "image"


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row of ``probabilities`` for each of ``names``."""

    names: list[str]
    probabilities: Tensor
    classes: tuple[str, ...]
    problems: list[Problem]
    kind: str = "image"
    """What the names stand for: image, row or text."""
    prior: Tensor | None = None
    """The site's estimated mix of classes."""
    temperature: float = 1.0

    def rows(self, confident: float) -> list[dict[str, Any]]:
        """Best class first; ``sure`` is False for samples a person should check, None if no bound is given (0)."""
        best = self.probabilities.max(1)
        return [
            {
                self.kind: name,
                "label": self.classes[int(label)],
                "probability": round(float(top), 6),
                "sure": float(top) >= confident if confident else None,
                "probabilities": dict(zip(self.classes, (round(p, 6) for p in row), strict=True)),
            }
            for name, label, top, row in zip(
                self.names, best.indices, best.values, self.probabilities.tolist(), strict=True
            )
        ]


def find_images(about: dict[str, Any], paths: Sequence[str | Path], report: Report | None = None) -> Folder:
    """The images among the given files and folders, brought to the model's shape."""
    files: list[str] = []
    problems: list[Problem] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += [os.path.normpath(path / name) for name in walk(path, "", problems)]
        elif path.exists():
            files.append(str(path))
        else:
            raise FedfewError("E206", shown(path), "there is no such file or folder", "Check the path")
    asked = ", ".join(map(shown, paths))
    return read_for(about, Folder(Path(), [ImageFile(file) for file in files], problems), asked, report)


def find_samples(
    about: dict[str, Any], paths: Sequence[str | Path], report: Report | None = None, without: str = ""
) -> Found:
    """The samples in files and folders: images, or the rows of tables where the model takes vectors or texts.

    ``without``: a column of tables; only rows where it is empty.
    """
    if "encoder" in about or "text" in about:
        from fedfew.data.rows.datasets import described, unlabeled_rows  # noqa: PLC0415 - only for tables
        from fedfew.data.rows.files import read_tables  # noqa: PLC0415

        tables = [unlabeled_rows(rows, without) for rows in read_tables(paths, about.get("text", ""))]
        if not any(map(len, tables)):
            where = ", ".join(map(shown, paths))
            raise FedfewError("E206", where, f"every row has a {without}", "Give a table with rows that have none")
        samples = joined([described(rows, about) for rows in tables])
        return Found(
            [name for rows in tables for name in rows.names()], samples, [], "text" if "text" in about else "row"
        )
    folder = find_images(about, paths, report)
    names = [shown(file.path) for file in folder.files]
    return Found(names, Images.described(folder.images, about), folder.problems)


def read_for(about: dict[str, Any], folder: Folder, asked: str, report: Report | None = None) -> Folder:
    """The images of a folder in the shape that a model takes; E209 if there are none, E204 if it is not square."""
    channels, height, width = about["shape"]
    if height != width:
        raise FedfewError("E204", "model", f"takes images of {height}×{width}; files can only be read for square ones")
    read = folder.read(height, channels, report, cached=False)
    if not read.files:
        why = f"; {read.problems[0].path} {read.problems[0].reason}" if read.problems else ""
        raise FedfewError("E209", asked, f"there is no readable image{why}")
    return read


def adapt(probabilities: Tensor, about: dict[str, Any], concentration: float = CONCENTRATION) -> tuple[Tensor, Tensor]:
    """Probabilities corrected for the images' own class mix, and that mix."""
    classes = len(about["classes"])
    server = torch.tensor(about.get("prior") or [1 / classes] * classes)
    scale = float(about.get("temperature", 1.0))
    return own_class_mix(probabilities, server, scale, concentration)


def predict_files(
    run: Run,
    paths: Sequence[str | Path],
    *,
    calibrate: bool = False,
    adapt_prior: bool = False,
    report: Report | None = None,
) -> Predictions:
    """Class probabilities of image files, or of the rows of tables where the model takes vectors or texts.

    ``calibrate`` corrects over-confidence with the temperature found on held-out labels; ``adapt_prior`` corrects
    them for the class mix that label-shift EM finds in the images themselves.
    """
    about = run.about_model()
    inputs = find_samples(about, paths, report)
    probabilities, prior = run.network().probabilities(inputs.samples), None
    scale = float(about.get("temperature", 1.0)) if calibrate or adapt_prior else 1.0
    if adapt_prior:
        probabilities, prior = adapt(probabilities, about)
    elif calibrate:
        probabilities = tempered(probabilities, scale)
    classes = tuple(about["classes"])
    return Predictions(inputs.names, probabilities, classes, inputs.problems, inputs.kind, prior, scale)
