"""FedAvg and FedProx with an objective for unlabeled clients: the plain way to bring the two fields together.

McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data; Li et al. 2020,
Federated Optimization in Heterogeneous Networks (FedProx).

    σ     = ω_t − η ∇ CE(y, f(x))                                       on the server's labels
    ψ^k   = σ − η ∇ [ objective(u) + (μ/2) ‖ψ − σ‖² ]                    on client k's images, μ = 0 for FedAvg
    ω_{t+1} = Σ w_k ψ^k                                                 order = "after": the server trains here instead
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedfew.algorithms.exchange import contributions, model_reply, scalar
from fedfew.algorithms.local import LocalSGD, Pull, Supervised, descend, train_supervised
from fedfew.algorithms.objectives import Objective
from fedfew.algorithms.vote import Ballot
from fedfew.core.layout import Layout, Vector
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import Aggregator, ClientSite, ClientUpdate, Payload, Schema, ServerSite, ServerState, Trained


@dataclass(frozen=True)
class FedAvg:
    """Server training, client training on ``objective``, aggregation; with ``prox`` > 0 it is FedProx."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    objective: Objective
    prox: Annotated[NonNegative, Doc("μ of the proximal term (μ/2)‖ψ − ω‖²")] = 0.0
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    order: Annotated[
        Literal["before", "after"],
        Doc("the server trains before the clients, or after the aggregation (and once before the first round)"),
    ] = "before"
    unfit: ClassVar[Mapping[str, str]] = {}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "fedavg"

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        if self.order == "before" or state.round == 0:
            return replace(state, sigma=self._train_server(state.omega, state, site, rng))
        return replace(state, sigma=state.omega)

    def _train_server(self, start: Vector, state: ServerState, site: ServerSite, rng: torch.Generator) -> Vector:
        lr = self.server.sgd.rate(state.round, state.validation)
        sigma, _ = train_supervised(
            site.network, start, site.labeled, self.server, lr, rng, scale=self.lambda_s, flips=site.flips
        )
        return sigma

    def broadcast(self, state: ServerState, client: int) -> Payload:
        progress = state.round / max(self.client.rounds, 1)
        return {
            "omega": state.sigma,
            "lr": scalar(self.client.rate(state.round, state.validation)),
            "progress": scalar(progress),
        }

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        network, ballot = site.network, Ballot(len(site))
        network.load(payload["omega"])
        step = self.objective.begin(site, float(payload["progress"]), rng)

        def loss_of(indices: Tensor) -> Tensor | None:
            outcome = step(indices)
            ballot.record(indices, outcome.labels, outcome.keep)
            return outcome.loss

        near = Pull(payload["omega"], self.prox / 2)
        penalty = near.add_gradient if self.prox else None
        steps = descend(network, self.client, float(payload["lr"]), len(site), loss_of, rng, penalty)
        return Trained({"psi": network.snapshot()}, {"coverage": ballot.coverage, "steps": float(steps)}, ballot.votes)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        psi = self.aggregator(contributions(state, updates), state.sigma, state.sigma)
        omega = psi.vector if self.order == "before" else self._train_server(psi.vector, state, site, rng)
        return replace(state, omega=omega, weights=psi.weights)

    def reply_schema(self, layout: Layout) -> Schema:
        return model_reply(layout)


def fedprox(
    server: Supervised,
    client: LocalSGD,
    aggregator: Aggregator,
    objective: Objective,
    prox: Annotated[NonNegative, Doc("μ of the proximal term (μ/2)‖ψ − ω‖²; tried in the paper: .001 .01 .1 1")] = 0.01,
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0,
    order: Annotated[Literal["before", "after"], Doc("as for fedavg")] = "before",
) -> FedAvg:
    """FedProx (Li et al. 2020): FedAvg whose clients are held near the model they started from."""
    return FedAvg(server, client, aggregator, objective, prox, lambda_s, order)
