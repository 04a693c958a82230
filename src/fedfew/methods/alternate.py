"""Alternate training, the skeleton of SemiFL and (FL)²: labels once a round, clients first, the server last.

ψ = aggregate of the clients that labelled anything;   v ← m v + (ω_t − ψ);   ω_{t+1} = (ω_t − v) trained on D_s
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import Aggregator, ClientSite, ClientUpdate, Method, Payload, ServerSite, ServerState
from fedfew.methods.fedavg import NO_WAY_TO_TRUST
from fedfew.methods.updates import Warmup, active, contributions, scalar, with_momentum
from fedfew.training.augment import weak
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import LocalSGD, Supervised, train_server


@dataclass(frozen=True)
class Alternate(Method):
    """How server and clients take turns; SemiFL and (FL)² say what their clients do."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    server_momentum: Annotated[NonNegative, Doc("m: share of the last rounds' movement that is carried on")] = 0.5
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Warmup = 0
    vote: Voting = PLAIN_VOTE
    unfit: ClassVar[Mapping[str, str]] = {"fltrust": NO_WAY_TO_TRUST}

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Before the first round the server trains alone, so that the first labels are worth something."""
        sigma = state.omega
        if state.unheard:
            sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s, self.warmup)
        return replace(state, sigma=sigma, extra=state.extra | self.vote.learn(site))

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """σ here is ω_t as the server has trained it."""
        lr = scalar(self.client.rate(state.round, state.validation))
        return {"omega": state.sigma, "lr": lr} | self.vote.message(state)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        """Aggregate with server momentum, then train on the server's labels."""
        parts = active(contributions(state, updates, work=self.client.work))
        omega, extra, weights = state.sigma, state.extra, {}
        if parts:
            psi = self.aggregator(parts, state.sigma, state.sigma)
            omega, weights = psi.vector, psi.weights
            if self.server_momentum:
                velocity, trainable = state.extra.get("velocity"), site.network.layout.trainable
                omega, velocity = with_momentum(state.sigma, omega, velocity, self.server_momentum, trainable)
                extra = extra | {"velocity": velocity}
        made = omega
        omega = train_server(self.server, omega, state, site, rng, self.lambda_s)
        return replace(state, omega=omega, extra=extra, weights=weights, clients=made)


def label_once(payload: Payload, site: ClientSite, vote: Voting, rng: torch.Generator) -> Tensor:
    """Probabilities N×C of the received model on one weak view of each image, in evaluation mode; leaves it loaded."""
    site.network.load(payload["omega"])
    adjust = vote.adjust(payload, site, rng)
    if not len(site):
        return torch.empty(0, site.classes)
    return adjust(site.network.probabilities(weak(site.images, rng, site.flips)))
