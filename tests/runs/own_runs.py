"""A dataset that brings its sites, a method that always fails, and the record of a round in which nothing happened."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples


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
