"""Consistency objectives, without labels: Π-model, KL divergence, temporal ensembling and mean teacher.

    Π-model               w ‖p(view 1) − p(view 2)‖²                                S. Laine, T. Aila, ICLR 2017
    KL consistency        w KL(p(image) ‖ p(view))                                  Eq. 2 of Zhang et al. 2021
    Temporal ensembling   w ‖p(view) − Z_i/(1 − a^t)‖²,  Z_i ← a Z_i + (1 − a) p      the same
    Mean teacher          w ‖p(view 1; θ) − p(view 2; θ̄)‖²,  θ̄ ← a θ̄ + (1 − a) θ     A. Tarvainen, H. Valpola, 2017

p are softmax outputs; the square is summed over the classes and averaged over the batch; w has a ramp over the rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from fedfew.core.settings import Decay, Doc, Fraction, NonNegative
from fedfew.core.types import ClientSite
from fedfew.objectives.objective import Batch, Step, ramp, soft_ramp
from fedfew.training.label_shift import Adjust, unadjusted


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """‖p − q‖²: summed over the classes, averaged over the batch."""
    return (first - second).square().sum(1).mean()


@dataclass(frozen=True)
class Consistency:
    """The settings of all."""

    weight: Annotated[NonNegative, Doc("weight of the loss at the end of the ramp")] = 1.0
    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows")] = 0.2
    labels: ClassVar[bool] = False


@dataclass(frozen=True)
class PiModel(Consistency):
    """Π-model (Laine & Aila 2017): two views of an image should get equal predictions; gradients go through both."""

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * soft_ramp(progress, self.ramp)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            pair = samples.weak(rng).join(samples.weak(rng))
            first, second = site.network(pair).softmax(1).chunk(2)
            return Step(weight * disagreement(first, second) if weight else None)

        return step


@dataclass(frozen=True)
class KLConsistency(Consistency):
    """KL(f(u) ‖ f(û)), Eq. 2 of Zhang et al. 2021: a view û should get the image's prediction; both get gradients."""

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * soft_ramp(progress, self.ramp)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            image, view = (site.network(part).log_softmax(1) for part in (samples, samples.weak(rng)))
            return Step(weight * kl_div(view, image, reduction="batchmean", log_target=True) if weight else None)

        return step


@dataclass(frozen=True)
class TemporalEnsembling(Consistency):
    """Temporal ensembling (Laine & Aila 2017): an image's target is the mean of its earlier predictions.

    The targets stay in the client's memory from round to round. An image seen for the first time has none and only
    starts the mean for the next visit.
    """

    decay: Annotated[Decay, Doc("a: decay of an image's target at each visit")] = 0.6
    published: ClassVar[Mapping[str, float]] = {"decay": 0.6}

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * soft_ramp(progress, self.ramp)
        ensemble, visits = _remembered(site)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            p = site.network(samples.weak(rng)).softmax(1)
            known = visits[indices] > 0
            targets = ensemble[indices][known] / (1 - self.decay ** visits[indices][known, None])
            loss = (
                weight * disagreement(p[known.to(p.device)], targets.to(p.device)) if weight and known.any() else None
            )
            ensemble[indices] = self.decay * ensemble[indices] + (1 - self.decay) * p.detach().cpu()
            visits[indices] += 1
            return Step(loss)

        return step


def _remembered(site: ClientSite) -> tuple[Tensor, Tensor]:
    """Z (N×C) and the visits of each image (N): new tensors each round, because a checkpoint may hold the old ones."""
    kept = site.memory.get("ensemble")
    if kept is not None and kept.shape == (len(site), site.classes):
        ensemble, visits = kept.clone(), site.memory["visits"].clone()
    else:
        ensemble, visits = torch.zeros(len(site), site.classes), torch.zeros(len(site), dtype=torch.int64)
    site.memory["ensemble"], site.memory["visits"] = ensemble, visits
    return ensemble, visits


@dataclass(frozen=True)
class MeanTeacher(Consistency):
    """Mean teacher (Tarvainen & Valpola 2017): the student agrees with a moving average of itself.

    The teacher starts each round as the received model: clients keep no model of their own.
    """

    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows, and the teacher adapts faster")] = 0.2
    early: Annotated[Decay, Doc("a during the ramp")] = 0.99
    late: Annotated[Decay, Doc("a after the ramp")] = 0.999
    published: ClassVar[Mapping[str, float]] = {"early": 0.99, "late": 0.999}

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * soft_ramp(progress, self.ramp)
        decay = self.late if ramp(progress, self.ramp) >= 1 else self.early
        teacher = site.network.vector.detach().clone()
        fresh = True

        def step(indices: Tensor) -> Step:
            nonlocal fresh
            if not fresh:  # the student has taken a step since the last batch
                teacher.mul_(decay).add_(site.network.vector.detach(), alpha=1 - decay)
            fresh = False
            if not weight:
                return Step(None)
            samples = site.samples.take(indices)
            target = site.network.outputs_of(teacher, samples.weak(rng)).softmax(1)
            student = site.network(samples.weak(rng)).softmax(1)
            return Step(weight * disagreement(student, target))

        return step
