"""The interface of client objectives: a loss on unlabeled images, set up once a round, called batch by batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedfew.core.types import ClientSite
from fedfew.training.label_shift import Adjust, unadjusted


@dataclass(frozen=True, eq=False)
class Step:
    """One batch's loss (None: nothing to learn from); if it makes pseudo-labels, these and which are confident."""

    loss: Tensor | None
    labels: Tensor | None = None
    keep: Tensor | None = None


Batch = Callable[[Tensor], Step]
"""The loss of a batch given by its indices."""


class Objective(Protocol):
    """Sets up a client's training: from the site and the run's progress (0..1), returns the loss of a batch of indices.

    State of one round (a teacher, labels made once) lives in the returned function; what must last longer goes to
    ``site.memory``. ``adjust`` is applied to probabilities before they become labels.
    """

    labels: ClassVar[bool]
    """Whether it makes pseudo-labels, so that ``vote.prior`` has an effect."""

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch: ...


def ramp(progress: float, length: float) -> float:
    """From 0 to 1 over the first ``length`` of the run, linearly; 1 at once when length is 0."""
    return min(1.0, progress / length) if length else 1.0


def soft_ramp(progress: float, length: float) -> float:
    """exp(−5(1 − x)²) with x the linear ramp: 0.007 at the start, 1 at the end (Laine & Aila 2017)."""
    return math.exp(-5 * (1 - ramp(progress, length)) ** 2)
