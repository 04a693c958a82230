"""Evaluates a trained model: on the test samples of its run, or on a folder or table of labeled ones."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.config.schema import check
from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples
from fedfew.core.types import Report
from fedfew.data.dataset import Problem, shown
from fedfew.data.images.folders import LABELS, scan_labeled
from fedfew.data.images.subjects import numbers, with_subjects
from fedfew.data.samples import Images
from fedfew.inference.embedding import embed
from fedfew.inference.predict import find_samples, read_for
from fedfew.inference.unlike import Unlike, unlike_classes
from fedfew.runs.files import site_results
from fedfew.runs.folder import CONFIG, MODEL
from fedfew.runs.model_file import read_weights
from fedfew.runs.run import Run
from fedfew.runs.session import assemble
from fedfew.runs.statistics import Judged, evenness
from fedfew.runs.statistics import evaluate as measured
from fedfew.training.label_shift import tempered


def evaluate_run(run: Run, *, sites: bool = False) -> dict[str, Any]:
    """The measures on the run's own test images, as saved with it; computed if they are not.

    ``sites``: also for the clients of a simulation.
    """
    if run.evaluation and run.weights == MODEL and not sites:
        return run.evaluation
    parts = assemble(check(run.config.document, str(run.folder / CONFIG), run.allow_code))
    if not len(parts.federation.test):
        problem = "was trained without test images"
        raise FedfewError("E310", str(run.path), problem, "Give a folder of labeled images: fedfew evaluate RUN FOLDER")
    weights = read_weights(run.model_path())[0]
    vector = parts.network.layout.pack({name: weights[name] for name in parts.network.layout.names})
    parts.network.load(vector)
    test = parts.federation.test
    groups = None if test.groups is None else test.groups.numpy()
    judged = Judged(test.labels.numpy(), parts.network.probabilities(test.samples).double().numpy(), groups)
    measures = measured(judged, parts.federation.classes)
    results = site_results(parts, vector, simulated=sites)
    known = [row["accuracy"] for row in results if row.get("accuracy") is not None]
    return measures | {"sites": results} | (evenness(known) if known else {})


def evaluate_files(
    run: Run, folder: Path, report: Report | None = None, group: str = ""
) -> tuple[dict[str, Any], list[Problem]]:
    """The measures on a folder with a subfolder for each class, or with a labels.csv; or on the rows of a table.

    ``group`` is a pattern of file names, for images of one patient.
    """
    about = run.about_model()
    classes = [str(name) for name in about["classes"]]
    rows = "encoder" in about or "text" in about
    labeled = _rows(run, folder) if rows else _images(run, folder, report, group)
    names = labeled.names
    strange = sorted(set(names) - set(classes))
    if strange or not names:
        problem = f"{', '.join(strange[:9])} is not a class of this model" if strange else "nothing in it is labeled"
        remedy = f"Its classes are {', '.join(classes)}: name folders after them, or list them in {LABELS} or a column"
        raise FedfewError("E208" if strange else "E206", shown(folder), problem, remedy)
    labels = np.asarray([classes.index(name) for name in names], np.int64)
    probabilities = run.network().probabilities(labeled.samples()).double().numpy()
    return measured(Judged(labels, probabilities, labeled.groups), classes) | {"sites": []}, labeled.problems


def evaluate_unlabeled(
    run: Run, path: Path, report: Report | None = None
) -> tuple[dict[str, Any], Unlike | None, list[Problem]]:
    """What can be said of samples without labels: their classes' shares, and whether some are of none."""
    about, network = run.about_model(), run.network()
    inputs = find_samples(about, [path], report, str(run.flat.get("dataset.label", "")))
    features, probabilities = embed(network, inputs.samples)
    probabilities = tempered(probabilities, float(about.get("temperature", 1.0)))
    unlike = unlike_classes(run, network, inputs, features, probabilities)
    mix = dict(zip(about["classes"], (round(p, 4) for p in probabilities.mean(0).tolist()), strict=True))
    result = {"images": len(inputs.names), "mix": mix, "unlike": None if unlike is None else unlike.about()}
    return result, unlike, inputs.problems


@dataclass(frozen=True, eq=False)
class Labeled:
    """The class of each sample, the samples, files that were left out, and the group of each sample if it is known."""

    names: list[str]
    samples: Callable[[], Samples]
    problems: list[Problem]
    groups: NDArray[np.int64] | None = None


def _images(run: Run, folder: Path, report: Report | None, group: str) -> Labeled:
    about, labeled = run.about_model(), scan_labeled(folder)
    if not labeled.files:
        return Labeled([], lambda: Images.described(labeled.images, about), [])
    labeled = with_subjects(labeled, group)
    read = read_for(about, labeled, shown(folder), report)
    groups = numbers(read.files, {})
    return Labeled(
        [shown(file.group) for file in read.files],
        lambda: Images.described(read.images, about),
        read.problems,
        None if groups is None else groups.numpy(),
    )


def _rows(run: Run, path: Path) -> Labeled:
    """The rows that have a label; of a folder, the texts in the folders of classes."""
    from fedfew.data.rows.datasets import class_names, described, labeled_rows, labeled_texts  # noqa: PLC0415 - tables

    about, column = run.about_model(), str(run.flat.get("dataset.label", "label"))
    rows = labeled_texts(path, column, about["text"]) if path.is_dir() else labeled_rows(path, column)
    return Labeled([str(name) for name in class_names(rows, column)], lambda: described(rows, about), [])
