"""(FL)²: thresholds for each client and class, and consistency with an adversarially perturbed model.

S. Lee, T.-L. V. Le, J. Shin, S.-J. Lee: (FL)²: Overcoming Few Labels in Federated Semi-Supervised Learning. 2024.

    client k:  p = f_ω(weak u), once;   τ_k = mean max p,  τ_c = τ_k · p̃_c / max p̃,  p̃ = mean p
               CE(ŷ, f(strong u; w)) on { max p ≥ τ_ŷ } + KL(f(strong u; w) ‖ f(strong u; w + ε)) on { max p ≥ 0.95 }
               ε = ρ T² g / ‖T g‖, T = |w| + 0.01 for weights, 1 for biases: the ASAM ascent step of that subset's
               cross-entropy (J. Kwon et al., ICML 2021); the KL's gradient is taken at w + ε
    server:    as SemiFL (alternate training, server momentum), weights w_k ∝ 1 − τ_k
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fedfew.core.layout import Payload, Vector
from fedfew.core.network import Network
from fedfew.core.samples import Samples
from fedfew.core.settings import Doc, Fraction, NonNegative
from fedfew.core.types import ClientSite, Trained
from fedfew.methods.alternate import PUBLISHED, Alternate
from fedfew.methods.entry import Entry
from fedfew.methods.fedavg import STARTS_FROM_SERVER

FLOOR = 0.01
"""Added to |w| in the ascent step, so that a weight of zero can be moved too."""


def class_thresholds(probabilities: Tensor) -> tuple[Tensor, float]:
    """τ_c for each class, and τ_k = mean max p: a class the model rarely predicts has a lower threshold."""
    tau = float(probabilities.max(1).values.mean())
    mean = probabilities.mean(0)
    return tau * mean / mean.max(), tau


def ascent_step(network: Network, rho: float) -> Vector:
    """ε for the gradient that the network holds now, on its trainable part."""
    layout = network.layout
    n = layout.trainable
    weights = frozenset(name for name in layout.names if name.rpartition(".")[2] == "weight")
    scale = torch.where(layout.select(network.vector, weights)[:n], network.vector[:n].abs() + FLOOR, 1.0)
    scaled = scale * network.gradient[:n]
    step: Vector = rho * scale * scaled / (scaled.norm() + 1e-16)
    return step


@dataclass(frozen=True)
class FL2(Alternate):
    """(FL)² with its published settings."""

    certain: Annotated[Fraction, Doc("the sharpness term uses images with a probability of at least this")] = 0.95
    rho: Annotated[NonNegative, Doc("ρ: size of the perturbation; 0 leaves the term out")] = 0.1
    lambda_sharp: Annotated[NonNegative, Doc("weight of the sharpness term")] = 1.0

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        network = site.network
        p = self.label_once(payload, site, rng)
        if not len(p):
            return Trained({"psi": network.snapshot()}, {"steps": 0.0})
        thresholds, tau = class_thresholds(p)
        confidence, labels = p.max(1)
        keep = confidence >= thresholds[labels]
        kept = keep.nonzero().squeeze(1)
        certain = confidence >= self.certain

        def loss_of(indices: Tensor) -> Tensor:
            chosen = kept[indices]
            views = self.strong(site, chosen, rng)
            targets = labels[chosen].to(network.device)
            self.add_sharpness(network, views, targets, certain[chosen])
            return cross_entropy(network(views), targets)

        steps = self.descend(site, float(payload["lr"]), len(kept), loss_of, rng)
        metrics = {"coverage": len(kept) / len(site), "steps": float(steps), "status": tau}
        return Trained({"psi": network.snapshot()}, metrics, torch.where(keep, labels, -1))

    def add_sharpness(self, network: Network, views: Samples, targets: Tensor, certain: Tensor) -> None:
        """Add ∇ KL at w + ε to the network's gradient, which is zero before; the weights are restored."""
        if not self.rho or not self.lambda_sharp or not certain.any():
            return
        n = network.layout.trainable
        chosen, here = views.take(certain), network.vector[:n].clone()
        logits = network(chosen)
        goal = logits.detach().softmax(1)
        cross_entropy(logits, targets[certain.to(targets.device)]).backward()
        with torch.no_grad():
            network.vector[:n].add_(ascent_step(network, self.rho))
        network.gradient.zero_()
        divergence = kl_div(network(chosen).log_softmax(1), goal, reduction="sum") / len(views)
        (self.lambda_sharp * divergence).backward()
        with torch.no_grad():
            network.vector[:n].copy_(here)


FL2_ENTRY = Entry(
    FL2,
    published=PUBLISHED | {"warmup": 50},
    aggregator="status",
    unfit=STARTS_FROM_SERVER,
    strong_views=True,
)
