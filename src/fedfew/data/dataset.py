"""The dataset type: labeled samples for training and testing, and optionally sites with their own samples.

A file that cannot be used is reported, and the others are still read.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedfew.core.samples import LabeledSet, Samples
from fedfew.data.shares import Indices


class Unreadable(Exception):  # noqa: N818 - it is not an error of the run
    """A file cannot be used; the text says why and follows the file's name."""


@dataclass(frozen=True)
class Problem:
    """A remark on one file: why it was skipped, or which part was not used."""

    path: str
    reason: str
    skipped: bool = True


def shown(path: str | Path) -> str:
    """A path as text that can be printed and written, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, eq=False)
class SiteSamples:
    """Unlabeled samples that belong to sites from the start: site k holds those from offsets[k] to offsets[k + 1]."""

    names: tuple[str, ...]
    samples: Samples
    offsets: Indices
    truth: Tensor | None = None
    """Their classes (int64), where a simulation knows them: for reports and bounds, not for training; −1: no class."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with labels; all parts are of the same kind."""

    name: str
    train: LabeledSet
    test: LabeledSet
    classes: tuple[str, ...]
    sites: SiteSamples | None = None
    """The clients' own samples; None where samples of ``train`` are assigned to simulated clients."""
    users: Indices | None = None
    """The user of each sample of ``train``, as a whole number: for partitions that keep a user's samples together."""
    problems: tuple[Problem, ...] = ()
    """Images that were skipped or used in part, for ``fedfew check``."""
