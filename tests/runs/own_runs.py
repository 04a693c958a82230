"""Runs of their own kind: a dataset that brings its sites, the record of a round in which nothing happened, and runs
that never ran: real configs and curves by hand, so that every expected number can be derived."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.runtime.tiny_run import TINY

from fedfew.config.schema import load
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.runs.folder import RunFolder
from fedfew.runs.run import Run


def three_sites() -> Dataset:
    """Three sites of thirty digits each, whose classes a simulation knows."""
    digits = DATASETS["mini-mnist"]()
    sites = SiteSamples(
        ("north", "south", "west"),
        digits.train.samples.like(digits.train.samples.data[-90:]),
        np.array([0, 30, 60, 90]),
        digits.train.labels[-90:],
    )
    return replace(digits, name="three-sites", sites=sites)


BLANK: dict[str, Any] = {
    "round": 1, "accuracy": None, "accuracy_clients": None, "loss": None, "validation": None, "cohort": [],
    "weights": {}, "metrics": {}, "coverage": None, "correct": None, "pseudo_classes": [], "bytes_up": 0,
    "bytes_down": 0, "rejected": [], "missing": [], "unused": [], "wire": None, "skipped": False,
    "norm_server": None, "norm_step": None, "updates": [], "seconds": {},
}  # fmt: skip


def blank_record(**values: Any) -> dict[str, Any]:
    """A record with these values."""
    return BLANK | values


def by_hand(
    accuracies: Sequence[float], *, seed: int = 0, finished: bool = True, name: str = "", **overrides: Any
) -> Run:
    """A run of the tiny config with this curve; keys are written with __ for the dot."""
    chosen = {key.replace("__", "."): value for key, value in overrides.items()}
    rounds = len(accuracies) if finished else len(accuracies) + 5
    config = load(TINY, {"rounds": rounds, "seed": seed, "dataset.seed": seed, **chosen})
    records = [
        blank_record(round=t + 1, accuracy=a, validation=a, loss=1.0, seconds={"server": 0.5})
        | {"bytes_up": 1000 * (t + 1), "bytes_down": 2500}
        for t, a in enumerate(accuracies)
    ]
    around = {"fingerprint": {"torch": "2.13.0"}, "cores": 2, "python": "3.11"}
    return Run(RunFolder(Path(name or f"{config.method_name}-{seed}"))).with_(
        document=config.document, records=records, finished=finished, summary={}, environment=around
    )


def flat(accuracy: float, rounds: int = 3, **more: Any) -> Run:
    """A run that has the same accuracy in every round."""
    return by_hand([accuracy] * rounds, **more)
