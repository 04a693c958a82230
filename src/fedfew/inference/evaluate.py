"""Evaluates a trained model: on the test images of its run, or on a folder of labeled images."""

from pathlib import Path
from typing import Any

import numpy as np

from fedfew.config.schema import check
from fedfew.core.errors import FedfewError
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
    """The measures on a folder with a subfolder for each class, or with a labels.csv."""
    about, labeled = run.about_model(), scan_labeled(folder)
    classes = [str(name) for name in about["classes"]]
    strange = sorted({shown(file.group) for file in labeled.files} - set(classes))
    if strange or not labeled.files:
        problem = f"{', '.join(strange)} is not a class of this model" if strange else "there are no labeled images"
        remedy = f"Put images into folders named after its classes ({', '.join(classes)}), or list them in {LABELS}"
        raise FedfewError("E208" if strange else "E206", shown(folder), problem, remedy)
    read = read_for(about, labeled, shown(folder), report)
    labels = [classes.index(shown(file.group)) for file in read.files]
    probabilities = run.network().probabilities(Images.described(read.images, about)).double().numpy()
    return measured(Judged(np.asarray(labels, np.int64), probabilities), classes) | {"sites": []}, read.problems
