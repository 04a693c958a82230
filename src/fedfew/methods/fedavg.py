"""FedAvg, FedProx and FedBN with an objective for unlabeled clients: federated plus semi-supervised learning, plainly.

McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data; T. Li et al. 2020,
Federated Optimization in Heterogeneous Networks (FedProx); X. Li et al. 2021, FedBN: Federated Learning on Non-IID
Features via Local Batch Normalization; Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution
(server momentum).

    ψ^k     = ω_t − η ∇ [ objective(u) + (μ/2) ‖ψ − ω_t‖² ]              on client k's images, μ = 0 for FedAvg
    ψ       = Σ w_k ψ^k                                                 the clients' mean
              ω_t − v,  v ← m v + (ω_t − Σ w_k ψ^k)                      with server momentum m
    ω_{t+1} = ψ − η ∇ CE(y, f(x))                                       on the server's labels

A client with labels of its own adds λ_s CE(y, f(x)) on them to every batch.

FedBN is FedAvg whose clients keep their normalisation layers (γ_k, β_k, running statistics) and send the rest; the
server's own come from training on D_s and are used in evaluation. For any other method that sends models, set
``norm.policy = "local"``. A model without normalisation layers is refused.

The server trains ω_0 too, for ``warmup`` epochs. With order = "before" its turn is at the start of a round instead of
its end: ω is then the clients' mean.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedfew.core.layout import Payload, Vector
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.data.shares import NO_LABELS, ClientLabels
from fedfew.methods.entry import Entry, Federated
from fedfew.objectives.objective import Objective, train_unlabeled
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.supervised import LabelLoss, label_loss, train_server
from fedfew.training.updates import Order, Warmup, contributions, schedule, with_momentum
from fedfew.transforms.norm_policy import LocalNorm

STARTS_FROM_SERVER = {
    "fltrust": "the clients start from the server's model, so σ − ω is zero and the server has no direction to compare "
    "theirs with"
}
"""The aggregators that do not fit a method whose clients start from the server's trained model."""


class Averaging(Federated):
    """Clients start from the server's trained model; the server trains on their mean, or with ``order`` before them."""

    lambda_s: float
    warmup: int
    order: str
    prox: float = 0.0

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s, self.warmup)
        return replace(state, sigma=sigma)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        sigma = state.omega
        if self.order == "before":
            sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s)
        return replace(state, sigma=sigma)

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        psi = self.aggregator(contributions(state, updates, self.client, self.prox), state.sigma, state.sigma)
        made, kept = self.move(state, psi.vector, site)
        omega = made
        if self.order == "after":
            omega = train_server(self.server, made, state, site, rng, self.lambda_s)
        return replace(state, omega=omega, extra=state.extra | kept), Outcome(psi.weights, clients=made)

    def move(self, state: ServerState, psi: Vector, site: ServerSite) -> tuple[Vector, dict[str, Tensor]]:
        """The server's new model from the clients' mean ψ, and what it keeps for the next round."""
        return psi, {}


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Server training, client training on ``objective``, aggregation; with ``prox`` > 0 it is FedProx."""

    objective: Objective
    prox: Annotated[NonNegative, Doc("μ of the proximal term (μ/2)‖ψ − ω‖²; FedProx tried .001 .01 .1 1")] = 0.0
    lambda_s: Annotated[NonNegative, Doc("weight of the labels' cross-entropy, at server and clients")] = 1.0
    order: Order = "after"
    server_momentum: Annotated[NonNegative, Doc("m: server momentum, the share of past changes kept; 0: none")] = 0.0
    warmup: Warmup = 0
    vote: Voting = PLAIN_VOTE
    client_labels: ClientLabels = NO_LABELS

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return super().warm_up(replace(state, extra=state.extra | self.vote.learn(site)), site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return {"omega": state.sigma} | schedule(self.client, state) | self.vote.message(state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        return train_unlabeled(
            self.objective, self.client, self.vote, payload, site, rng, self.prox, supervise=self.supervise(site, rng)
        )

    def supervise(self, site: ClientSite, rng: torch.Generator) -> LabelLoss:
        """The loss on a client's own labels."""
        return label_loss(site, self.server, self.client_labels.batch, self.lambda_s, rng)

    def move(self, state: ServerState, psi: Vector, site: ServerSite) -> tuple[Vector, dict[str, Tensor]]:
        return with_momentum(state, psi, self.server_momentum, site.network.layout.trainable)


FEDAVG = Entry(FedAvg, unfit=STARTS_FROM_SERVER, sums="all")
FEDPROX = Entry(FedAvg, {"prox": 0.01}, unfit=STARTS_FROM_SERVER, sums="all")
FEDBN = Entry(FedAvg, unfit=STARTS_FROM_SERVER, sums="all", transforms=(LocalNorm(),))
