"""MixMatch at a client that has no labels: guessed labels, sharpened, mixed with one another.

D. Berthelot, N. Carlini, I. Goodfellow, N. Papernot, A. Oliver, C. Raffel: MixMatch. NeurIPS 2019.

    q  = sharpen(mean_k f(weak_k u), T)                       for K views, without gradient
    x′ = λ′ x_i + (1 − λ′) x_j,  q′ likewise,  λ′ = max(λ, 1 − λ),  λ ~ Beta(a, a)      i, j over all views of the batch
    loss = w · mean (q′ − p(x′))²                             over classes and images

As published, MixMatch also mixes with labeled images; those are at the server, so only unlabeled images are mixed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedfew.core.samples import blend, joined
from fedfew.core.settings import Count, Doc, Fraction, NonNegative, Positive
from fedfew.core.types import ClientSite
from fedfew.objectives.objective import Batch, Step, ramp
from fedfew.training.label_shift import Adjust, tempered, unadjusted


@dataclass(frozen=True)
class MixMatch:
    """MixMatch (Berthelot et al. 2019): guessed labels, sharpened, and MixUp between images."""

    views: Annotated[Count, Doc("K: weak views whose mean is the guess")] = 2
    temperature: Annotated[Positive, Doc("T: below 1 sharpens the guess")] = 0.5
    beta: Annotated[Positive, Doc("a of Beta(a, a), from which the mixing shares are drawn")] = 0.75
    weight: Annotated[NonNegative, Doc("weight of the loss at the end of the ramp")] = 10.0
    ramp: Annotated[Fraction, Doc("share of the run over which the weight grows from 0")] = 0.2
    labels: ClassVar[bool] = True

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
