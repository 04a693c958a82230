"""Objectives with pseudo-labels: Pseudo-Label, FixMatch, UDA, FreeMatch and MixMatch.

Pseudo-Label   1[max p ≥ τ] CE(argmax p, f(weak u)),  p = f(u)               D.-H. Lee, 2013
FixMatch       1[max p ≥ τ] CE(argmax p, f(strong u)),  p = f(weak u)        K. Sohn et al., NeurIPS 2020
UDA            1[max p ≥ τ] CE(p^(1/T)/Σ, f(strong u)),  p = f(weak u)       Q. Xie et al., NeurIPS 2020
FreeMatch      FixMatch with τ_c for each class, which adapt to the model      Y. Wang et al., ICLR 2023
MixMatch       mean (q′ − p(x′))² over classes and images                    D. Berthelot et al., NeurIPS 2019
               q = sharpen(mean_k f(weak_k u), T) for K views, without gradient
               x′ = λ′ x_i + (1 − λ′) x_j,  q′ likewise,  λ′ = max(λ, 1 − λ),  λ ~ Beta(a, a)

i and j are over all views of the batch. As published, MixMatch also mixes with labeled images; those are at the server,
so only unlabeled images are mixed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.samples import STANDARD, blend, joined
from fedfew.core.settings import Count, Decay, Doc, Fraction, NonNegative, Positive
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


class StrongViews:
    """A label from the weak view trains the strong view, where the label is confident."""

    weight: float
    labels: ClassVar[bool] = True
    strong_views: ClassVar[bool] = True

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        confident = self.confident(site)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            with torch.no_grad():
                p = adjust(site.network(samples.weak(rng)).softmax(1))
            keep, labels = confident(p), p.argmax(1)
            if not keep.any() or not self.weight:
                return Step(None, labels, keep)
            # only the images kept are passed forward; the loss is a mean over the whole batch
            logits = site.network(samples.take(keep).strong(rng, site.own_view or STANDARD))
            loss = cross_entropy(logits, self.targets(p[keep]), reduction="sum")
            return Step(self.weight * loss / len(samples), labels, keep)

        return step

    def confident(self, site: ClientSite) -> Callable[[Tensor], Tensor]:
        """The rule that maps probabilities of weak views (N×C) to the mask of those that are used."""
        raise NotImplementedError

    def targets(self, p: Tensor) -> Tensor:
        """What the strong views are trained on, from the probabilities of the weak ones."""
        return p.argmax(1)


@dataclass(frozen=True)
class FixMatch(StrongViews):
    """FixMatch (Sohn et al. 2020): a confident label from the weak view trains the strong view."""

    threshold: Annotated[Fraction, Doc("τ: a pseudo-label is used where its probability is at least this")] = 0.95
    weight: Annotated[NonNegative, Doc("λ_u: weight of the loss")] = 1.0
    published: ClassVar[Mapping[str, float]] = {"threshold": 0.95, "weight": 1.0}

    def confident(self, site: ClientSite) -> Callable[[Tensor], Tensor]:
        return lambda p: p.amax(1) >= self.threshold


@dataclass(frozen=True)
class UDA(FixMatch):
    """UDA (Xie et al. 2020): the sharpened output on a weak view is the target of a strong view.

    Its training signal annealing is for labels, which the server has: ``server.annealing``.
    """

    threshold: Annotated[Fraction, Doc("τ: an image is used where its largest probability is at least this")] = 0.8
    weight: Annotated[NonNegative, Doc("weight of the loss")] = 1.0
    temperature: Annotated[Positive, Doc("T: below 1 sharpens the target")] = 0.4
    published: ClassVar[Mapping[str, float]] = {"threshold": 0.8, "weight": 1.0, "temperature": 0.4}

    def targets(self, p: Tensor) -> Tensor:
        return tempered(p, self.temperature)


@dataclass(frozen=True)
class FreeMatch(StrongViews):
    """FreeMatch (Wang et al. 2023): FixMatch with class thresholds that rise with the model's confidence.

    τ ← a τ + (1 − a) mean max p;   p̃ ← a p̃ + (1 − a) mean p;   τ_c = τ p̃_c / max p̃       batch by batch, from 1/C

    It runs at a client, which keeps τ and p̃ from round to round. The published fairness term, which pushes predictions
    towards equal class shares, is left out: a non-IID client does not have equal shares.
    """

    decay: Annotated[Decay, Doc("a: decay of τ and p̃ at each batch; published: .999")] = 0.9
    weight: Annotated[NonNegative, Doc("weight of the loss")] = 1.0
    published: ClassVar[Mapping[str, float]] = {"decay": 0.999, "weight": 1.0}

    def confident(self, site: ClientSite) -> Callable[[Tensor], Tensor]:
        start = torch.full((site.classes + 1,), 1 / site.classes)
        kept = site.memory.get("freematch", start).clone()  # p̃, then τ; new, because a checkpoint may hold the old one
        site.memory["freematch"] = kept

        def above(p: Tensor) -> Tensor:
            confidence, labels = p.max(1)
            now = torch.cat([p.mean(0), confidence.mean()[None]]).cpu()
            kept.mul_(self.decay).add_(now, alpha=1 - self.decay)
            thresholds = kept[-1] * kept[:-1] / kept[:-1].max()
            return confidence >= thresholds.to(p.device)[labels]

        return above


@dataclass(frozen=True)
class MixMatch:
    """MixMatch (Berthelot et al. 2019): guessed labels, sharpened, and MixUp between images."""

    views: Annotated[Count, Doc("K: weak views whose mean is the guess")] = 2
    temperature: Annotated[Positive, Doc("T: below 1 sharpens the guess")] = 0.5
    beta: Annotated[Positive, Doc("a of Beta(a, a), from which the mixing shares are drawn")] = 0.75
    weight: Annotated[NonNegative, Doc("weight of the loss at the end of the ramp")] = 10.0
    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows from 0")] = 0.2
    labels: ClassVar[bool] = True
    published: ClassVar[Mapping[str, float]] = {"views": 2, "temperature": 0.5, "beta": 0.75}
    """λ_U, the weight, is another one for each dataset there."""

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        weight = self.weight * ramp(progress, self.ramp)

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            views = joined([samples.weak(rng) for _ in range(self.views)])
            with torch.no_grad():
                guess = site.network(views).softmax(1).unflatten(0, (self.views, -1)).mean(0)
                guess = tempered(adjust(guess), self.temperature)
            labels = guess.argmax(1)
            keep = torch.ones_like(labels, dtype=torch.bool)
            if not weight:
                return Step(None, labels, keep)
            order = torch.randperm(len(views), generator=rng)
            share = beta_draw(self.beta, len(views), rng)
            share = torch.maximum(share, 1 - share)
            targets = guess.repeat(self.views, 1)
            p = site.network(views.mixed(views.take(order), share)).softmax(1)
            return Step(
                weight * (p - blend(targets, targets[order.to(targets.device)], share)).square().mean(), labels, keep
            )

        return step


def beta_draw(a: float, count: int, rng: torch.Generator) -> Tensor:
    """``count`` draws from Beta(a, a), seeded from the given generator."""
    seed = int(torch.randint(2**63 - 1, (), generator=rng))
    return torch.from_numpy(np.random.default_rng(seed).beta(a, a, count).astype(np.float32))
