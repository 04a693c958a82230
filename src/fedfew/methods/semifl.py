"""SemiFL: clients label their images once with the global model, mix them, and the server fine-tunes afterwards.

E. Diao, J. Ding, V. Tarokh: SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training.
NeurIPS 2022.

    client k:  ŷ = argmax f_ω(weak u), once;   fix = { max f_ω ≥ τ },  mix = as many of all images, drawn for each batch
               CE(ŷ_fix, f(strong x_fix)) + λ CE(ŷ_fix, f(x_mix)) + (1 − λ) CE(ŷ_mix, f(x_mix)),
               x_mix = λ weak(x_fix) + (1 − λ) weak(x_mix),  λ ~ Beta(a, a) for each batch
    server:    v ← m v + (ω_t − Σ w_k ψ_k),  ω_{t+1} = (ω_t − v) fine-tuned on D_s;  clients without labels are left out

Published with batch norm whose statistics are gathered from every client each round: ``norm.policy = "clients"``, in a
simulation only. Otherwise use GroupNorm, or statistics of the server's images (``norm.policy = "server-data"``).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Payload
from fedfew.core.settings import Doc, Fraction, NonNegative, Positive
from fedfew.core.types import ClientSite, Trained
from fedfew.methods.alternate import PUBLISHED, Alternate
from fedfew.methods.entry import Entry
from fedfew.methods.fedavg import STARTS_FROM_SERVER
from fedfew.objectives.pseudo_labels import beta_draw


@dataclass(frozen=True)
class SemiFL(Alternate):
    """SemiFL with its published settings."""

    threshold: Annotated[Fraction, Doc("τ: a pseudo-label is used where its probability is at least this")] = 0.95
    beta: Annotated[Positive, Doc("a of Beta(a, a), from which λ is drawn")] = 0.75
    lambda_mix: Annotated[NonNegative, Doc("weight of the mixed term; 0: the fixed term alone")] = 1.0

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        network = site.network
        confidence, labels = self.label_once(payload, site, rng).max(1)
        keep = confidence >= self.threshold
        fix = keep.nonzero().squeeze(1)

        def loss_of(indices: Tensor) -> Tensor:
            partner = torch.randint(len(site), (len(indices),), generator=rng)
            return self.loss(site, fix[indices], partner, labels, rng)

        steps = self.descend(site, float(payload["lr"]), len(fix), loss_of, rng)
        metrics = {"coverage": len(fix) / max(len(site), 1), "steps": float(steps)}
        return Trained({"psi": network.snapshot()}, metrics, torch.where(keep, labels, -1))

    def loss(self, site: ClientSite, fix: Tensor, mix: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
        """The fixed term on ``fix`` and the mixed term between ``fix`` and ``mix``, both given as indices."""
        network = site.network
        sure = labels[fix].to(network.device)
        loss = cross_entropy(network(self.strong(site, fix, rng)), sure)
        if not self.lambda_mix:
            return loss
        share = beta_draw(self.beta, 1, rng)
        first, second = (site.samples.take(chosen).weak(rng, self.shift) for chosen in (fix, mix))
        mixed = first.mixed(second, share.expand(len(fix)))
        logits, lam = network(mixed), float(share)
        other = cross_entropy(logits, labels[mix].to(network.device))
        return loss + self.lambda_mix * (lam * cross_entropy(logits, sure) + (1 - lam) * other)


SEMIFL = Entry(
    SemiFL, published=PUBLISHED, aggregator="uniform", unfit=STARTS_FROM_SERVER, sums="active", strong_views=True
)
