"""(FL)²: thresholds that fit each client and class, and agreement with a model pushed uphill.

S. Lee, T.-L. V. Le, J. Shin, S.-J. Lee: (FL)²: Overcoming Few Labels in Federated Semi-Supervised Learning. 2024.

    client k:  p = f_ω(weak u), once;   τ_k = mean max p,  τ_c = τ_k · p̃_c / max p̃,  p̃ = mean p
               CE(ŷ, f(strong u; w)) on { max p ≥ τ_ŷ } + KL(f(strong u; w) ‖ f(strong u; w + ε)) on { max p ≥ 0.95 }
               ε: the ASAM step uphill of that subset's cross-entropy; the KL's gradient is taken at w + ε
    server:    as SemiFL (alternate training, server momentum), weights w_k ∝ 1 − τ_k
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fedfew.core.layout import Layout, Vector
from fedfew.core.network import Network
from fedfew.core.settings import Doc, Fraction, Natural, NonNegative
from fedfew.core.types import Aggregator, ClientSite, ClientUpdate, Payload, Schema, ServerSite, ServerState, Trained
from fedfew.methods.alternate import Alternate, label_once
from fedfew.methods.fedavg import NO_WAY_TO_TRUST
from fedfew.methods.updates import model_reply
from fedfew.training.augment import strong
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import LocalSGD, Supervised, descend
from fedfew.training.sharpness import uphill


def class_thresholds(probabilities: Tensor) -> tuple[Tensor, float]:
    """τ_c for each class, and τ_k = mean max p: a class the model rarely names has a lower bar to pass."""
    tau = float(probabilities.max(1).values.mean())
    mean = probabilities.mean(0)
    return tau * mean / mean.max(), tau


@dataclass(frozen=True)
class FL2:
    """(FL)² with its published settings."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    certain: Annotated[Fraction, Doc("probability from which an image serves the sharpness term")] = 0.95
    rho: Annotated[NonNegative, Doc("ρ: how far uphill the disturbed model is; 0 leaves the term out")] = 0.1
    lambda_sharp: Annotated[NonNegative, Doc("weight of the sharpness term")] = 1.0
    server_momentum: Annotated[NonNegative, Doc("m: share of the last rounds' movement that is carried on")] = 0.5
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Annotated[Natural, Doc("server epochs before the first round; 0: as many as in any other")] = 0
    vote: Voting = PLAIN_VOTE
    unfit: ClassVar[Mapping[str, str]] = {"fltrust": NO_WAY_TO_TRUST}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "status"

    @property
    def turns(self) -> Alternate:
        """The skeleton it shares with SemiFL."""
        return Alternate(
            self.server,
            self.client,
            self.aggregator,
            self.lambda_s,
            self.server_momentum,
            self.vote,
            self.warmup,
        )

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return self.turns.before_clients(state, site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return self.turns.broadcast(state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        network = site.network
        p = label_once(payload, site, self.vote, rng)
        if not len(p):
            return Trained({"psi": network.snapshot()}, {"steps": 0.0})
        thresholds, tau = class_thresholds(p)
        confidence, labels = p.max(1)
        keep = confidence >= thresholds[labels]
        kept = keep.nonzero().squeeze(1)
        certain = confidence >= self.certain

        def loss_of(indices: Tensor) -> Tensor:
            chosen = kept[indices]
            views = strong(site.images[chosen], rng, flips=site.flips)
            targets = labels[chosen].to(network.device)
            self.add_sharpness(network, views, targets, certain[chosen])
            return cross_entropy(network(views), targets)

        steps = descend(network, self.client, float(payload["lr"]), len(kept), loss_of, rng)
        metrics = {"coverage": len(kept) / len(site), "steps": float(steps), "status": tau}
        return Trained({"psi": network.snapshot()}, metrics, torch.where(keep, labels, -1))

    def add_sharpness(self, network: Network, views: Tensor, targets: Tensor, certain: Tensor) -> None:
        """Add ∇ KL at w + ε to the network's gradient, which is zero before; the weights are as they were after."""
        if not self.rho or not self.lambda_sharp or not certain.any():
            return
        n = network.layout.trainable
        chosen, here = views[certain], network.vector[:n].clone()
        logits = network(chosen)
        goal = logits.detach().softmax(1)
        network.backward(cross_entropy(logits, targets[certain.to(targets.device)]))
        with torch.no_grad():
            network.vector[:n].add_(uphill(network, self.rho))
        network.gradient.zero_()
        divergence = kl_div(network(chosen).log_softmax(1), goal, reduction="sum") / len(views)
        network.backward(self.lambda_sharp * divergence)
        with torch.no_grad():
            network.vector[:n].copy_(here)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        return self.turns.after_clients(state, updates, site, rng)

    def reply_schema(self, layout: Layout) -> Schema:
        return model_reply(layout)
