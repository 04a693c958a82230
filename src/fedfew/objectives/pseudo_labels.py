"""Objectives with pseudo-labels: Pseudo-Label, FixMatch and UDA.

Pseudo-Label   1[max p ≥ τ] CE(argmax p, f(weak u)),  p = f(u)               D.-H. Lee, 2013
FixMatch       1[max p ≥ τ] CE(argmax p, f(strong u)),  p = f(weak u)        K. Sohn et al., NeurIPS 2020
UDA            1[max p ≥ τ] CE(p^(1/T)/Σ, f(strong u)),  p = f(weak u)       Q. Xie et al., NeurIPS 2020
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.samples import STANDARD, Samples
from fedfew.core.settings import Doc, Fraction, NonNegative, Positive
from fedfew.core.types import ClientSite
from fedfew.objectives.objective import Batch, Step, ramp
from fedfew.training.label_shift import Adjust, tempered, unadjusted


@dataclass(frozen=True)
class PseudoLabel:
    """Pseudo-Label (Lee 2013): CE(argmax f(u), f(weak u)) on the confident images, with a ramp over the rounds."""

    threshold: Annotated[Fraction, Doc("a pseudo-label is used where its probability is at least this")] = 0.8
    weight: Annotated[NonNegative, Doc("weight of the loss at the end of the ramp")] = 1.0
    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows from 0")] = 0.0
    labels: ClassVar[bool] = True

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * ramp(progress, self.ramp)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            with torch.no_grad():
                confidence, labels = adjust(site.network(samples).softmax(1)).max(1)
            keep = confidence >= self.threshold
            if not keep.any() or not weight:
                return Step(None, labels, keep)
            views = samples.take(keep).weak(rng)
            return Step(weight * cross_entropy(site.network(views), labels[keep]), labels, keep)

        return step


@dataclass(frozen=True)
class FixMatch:
    """FixMatch (Sohn et al. 2020): a confident label from the weak view trains the strong view."""

    threshold: Annotated[Fraction, Doc("τ: a pseudo-label is used where its probability is at least this")] = 0.95
    weight: Annotated[NonNegative, Doc("λ_u: weight of the loss")] = 1.0
    labels: ClassVar[bool] = True
    strong_views: ClassVar[bool] = True

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            with torch.no_grad():
                p = adjust(site.network(samples.weak(rng)).softmax(1))
            confidence, labels = p.max(1)
            keep = confidence >= self.threshold
            if not keep.any() or not self.weight:
                return Step(None, labels, keep)
            return Step(strong_loss(self.weight, site, samples, keep, self.targets(p[keep]), rng), labels, keep)

        return step

    def targets(self, p: Tensor) -> Tensor:
        """What the strong views are trained on, from the probabilities of the weak ones."""
        return p.argmax(1)


@dataclass(frozen=True)
class UDA(FixMatch):
    """UDA (Xie et al. 2020): the sharpened output on a weak view is the target of a strong view.

    Its training signal annealing is for labels, which the server has: ``server.annealing``.
    """

    threshold: Annotated[Fraction, Doc("τ: an image is used where its largest probability is at least this")] = 0.8
    weight: Annotated[NonNegative, Doc("weight of the loss")] = 1.0
    temperature: Annotated[Positive, Doc("T: below 1 sharpens the target")] = 0.4

    def targets(self, p: Tensor) -> Tensor:
        return tempered(p, self.temperature)


def strong_loss(
    weight: float, site: ClientSite, samples: Samples, keep: Tensor, targets: Tensor, rng: torch.Generator
) -> Tensor:
    """w CE(targets, f(strong u)) of the images kept, as a mean over the whole batch; only they are passed forward."""
    logits = site.network(samples.take(keep).strong(rng, site.own_view or STANDARD))
    return weight * cross_entropy(logits, targets, reduction="sum") / len(samples)
