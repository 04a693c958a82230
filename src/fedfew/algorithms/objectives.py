"""Client objectives: what a client minimises on its unlabeled images; each combines with any fitting aggregator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.algorithms.augment import weak
from fedfew.core.settings import Doc, Fraction, NonNegative
from fedfew.core.types import ClientSite


@dataclass(frozen=True, eq=False)
class Step:
    """One batch's loss (None: nothing to learn from), its pseudo-labels and which of them are confident."""

    loss: Tensor | None
    labels: Tensor
    keep: Tensor


class Objective(Protocol):
    """Opens a client's training: given the site and how far the run is (0..1), returns the loss of a batch of indices.

    What must last for the round (a teacher, labels made once) lives in the returned function; what must last longer
    goes to ``site.memory``.
    """

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator) -> Callable[[Tensor], Step]: ...


def ramp(progress: float, length: float) -> float:
    """From 0 to 1 over the first ``length`` of the run, linearly; 1 at once when length is 0."""
    return min(1.0, progress / length) if length else 1.0


@dataclass(frozen=True)
class PseudoLabel:
    """Pseudo-Label (Lee 2013): CE(argmax f(u), f(weak u)) on the confident images, with a ramp over the rounds."""

    threshold: Annotated[Fraction, Doc("a label counts from this probability on")] = 0.8
    weight: Annotated[NonNegative, Doc("weight of the loss at the end of the ramp")] = 1.0
    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows from 0")] = 0.0

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator) -> Callable[[Tensor], Step]:
        weight = self.weight * ramp(progress, self.ramp)

        def step(indices: Tensor) -> Step:
            images = site.images[indices]
            with torch.no_grad():
                confidence, labels = site.network(images).softmax(1).max(1)
            keep = confidence >= self.threshold
            if not keep.any() or not weight:
                return Step(None, labels, keep)
            views = weak(images[keep.cpu()], rng, flips=site.flips)
            return Step(weight * cross_entropy(site.network(views), labels[keep]), labels, keep)

        return step


OBJECTIVES: dict[str, Callable[..., Objective]] = {"pseudo-label": PseudoLabel}
