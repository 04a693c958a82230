"""The dataset type: labeled samples for training and testing, and optionally sites with their own samples."""

from dataclasses import dataclass

from torch import Tensor

from fedfew.core.samples import LabeledSet, Samples
from fedfew.data.images.unreadable import Problem
from fedfew.data.shares import Indices


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
