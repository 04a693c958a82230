"""Evaluates a trained model: on the test samples of its run, or on a folder or table of labeled ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedfew.config.schema import check
from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples
from fedfew.core.types import Report
from fedfew.data.dataset import Problem, shown
from fedfew.data.images.folders import LABELS, scan_labeled
from fedfew.data.samples import Images
from fedfew.inference.predict import read_for
from fedfew.runs.files import site_results
from fedfew.runs.folder import CONFIG, MODEL
from fedfew.runs.model_file import read_weights
from fedfew.runs.run import Run
from fedfew.runs.session import assemble
from fedfew.runs.statistics import Judged
from fedfew.runs.statistics import evaluate as measured


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
    judged = Judged(test.labels.numpy(), parts.network.probabilities(test.samples).double().numpy())
    measures = measured(judged, parts.federation.classes)
    return measures | {"sites": site_results(parts, vector, simulated=sites)}


def evaluate_files(run: Run, folder: Path, report: Report | None = None) -> tuple[dict[str, Any], list[Problem]]:
    """The measures on a folder with a subfolder for each class, or with a labels.csv; or on the rows of a table."""
    about = run.about_model()
    classes = [str(name) for name in about["classes"]]
    names, samples, problems = (_rows if "encoder" in about or "text" in about else _images)(run, folder, report)
    strange = sorted(set(names) - set(classes))
    if strange or not names:
        problem = f"{', '.join(strange[:9])} is not a class of this model" if strange else "nothing in it is labeled"
        remedy = f"Its classes are {', '.join(classes)}: name folders after them, or list them in {LABELS} or a column"
        raise FedfewError("E208" if strange else "E206", shown(folder), problem, remedy)
    labels = np.asarray([classes.index(name) for name in names], np.int64)
    probabilities = run.network().probabilities(samples()).double().numpy()
    return measured(Judged(labels, probabilities), classes) | {"sites": []}, problems


Labeled = tuple[list[str], Callable[[], Samples], list[Problem]]
"""The class of each sample, the samples, and files that were left out."""


def _images(run: Run, folder: Path, report: Report | None) -> Labeled:
    about, labeled = run.about_model(), scan_labeled(folder)
    if not labeled.files:
        return [], lambda: Images.described(labeled.images, about), []
    read = read_for(about, labeled, shown(folder), report)
    return [shown(file.group) for file in read.files], lambda: Images.described(read.images, about), read.problems


def _rows(run: Run, path: Path, report: Report | None) -> Labeled:
    """The rows that have a label; of a folder, the texts in the folders of classes."""
    from fedfew.data.rows.datasets import class_names, described, labeled_rows, labeled_texts  # noqa: PLC0415 - tables

    about, column = run.about_model(), str(run.document["dataset"].get("label", "label"))
    rows = labeled_texts(path, column, about["text"]) if path.is_dir() else labeled_rows(path, column)
    return [str(name) for name in class_names(rows, column)], lambda: described(rows, about), []
