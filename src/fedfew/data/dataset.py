"""The dataset type: labeled images for training and testing, and optionally sites with their own images."""

from dataclasses import dataclass

from torch import Tensor

from fedfew.core.types import LabeledSet
from fedfew.data.images.unreadable import Problem
from fedfew.data.shares import Indices


@dataclass(frozen=True, eq=False)
class SiteImages:
    """Unlabeled images that belong to sites from the start: site k holds ``images[offsets[k]:offsets[k + 1]]``."""

    names: tuple[str, ...]
    images: Tensor
    offsets: Indices
    truth: Tensor | None = None
    """Their classes (int64), where a simulation knows them: for reports and bounds, not for training; −1: no class."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with labels; ``flips`` says that a mirrored image keeps its class (not so for digits)."""

    name: str
    train: LabeledSet
    test: LabeledSet
    classes: tuple[str, ...]
    flips: bool = True
    sites: SiteImages | None = None
    """The clients' own images; None where images of ``train`` are assigned to simulated clients."""
    users: Indices | None = None
    """The user of each image of ``train``, as a whole number: for partitions that keep a user's images together."""
    problems: tuple[Problem, ...] = ()
    """Images that were skipped or used in part, for ``fedfew check``."""
