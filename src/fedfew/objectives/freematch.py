"""FreeMatch: thresholds that rise with the model's confidence, lower for classes it predicts rarely.

Y. Wang, H. Chen, Q. Heng, W. Hou, Y. Fan, Z. Wu, J. Wang, M. Savvides, T. Shinozaki, B. Raj, B. Schiele, X. Xie:
FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning. ICLR 2023.

    p = f(weak u);   τ ← a τ + (1 − a) mean max p;   p̃ ← a p̃ + (1 − a) mean p       batch by batch, from 1/C
    loss = 1[max p ≥ τ p̃_ŷ / max p̃] CE(ŷ, f(strong u)),   ŷ = argmax p

It runs at a client, which keeps τ and p̃ from round to round. The published fairness term, which pushes predictions
towards equal class shares, is left out: a non-IID client does not have equal shares.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfew.core.settings import Decay, Doc, NonNegative
from fedfew.core.types import ClientSite
from fedfew.objectives.objective import Batch, Step
from fedfew.objectives.pseudo_labels import strong_loss
from fedfew.training.label_shift import Adjust, unadjusted


@dataclass(frozen=True)
class FreeMatch:
    """FreeMatch (Wang et al. 2023): FixMatch with class thresholds that adapt to the model."""

    decay: Annotated[Decay, Doc("a: decay of τ and p̃ at each batch; published: .999")] = 0.9
    weight: Annotated[NonNegative, Doc("weight of the loss")] = 1.0
    labels: ClassVar[bool] = True
    strong_views: ClassVar[bool] = True

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        start = torch.full((site.classes + 1,), 1 / site.classes)
        kept = site.memory.get("freematch", start).clone()  # p̃, then τ; new, because a checkpoint may hold the old one
        site.memory["freematch"] = kept

        def step(indices: Tensor) -> Step:
            samples = site.samples.take(indices)
            with torch.no_grad():
                p = adjust(site.network(samples.weak(rng)).softmax(1))
            confidence, labels = p.max(1)
            now = torch.cat([p.mean(0), confidence.mean()[None]]).cpu()
            kept.mul_(self.decay).add_(now, alpha=1 - self.decay)
            keep = confidence >= thresholds(kept).to(p.device)[labels]
            if not keep.any() or not self.weight:
                return Step(None, labels, keep)
            return Step(strong_loss(self.weight, site, samples, keep, labels[keep], rng), labels, keep)

        return step


def thresholds(kept: Tensor) -> Tensor:
    """τ_c = τ p̃_c / max p̃ from p̃ and τ in one tensor."""
    mean, tau = kept[:-1], kept[-1]
    return tau * mean / mean.max()
